//! Resource types of the Longarm API: plain data, shared by the command line, the configuration file and the socket.
