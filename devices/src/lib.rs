//! Device models. They are given guest memory and a way to raise an interrupt, and know nothing of the monitor above them.
