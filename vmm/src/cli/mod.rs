//! The `longarm` command.

mod args;
mod client;
mod exec;
mod mac;
mod run;
mod signals;

pub use args::{Command, parse};

use crate::outcome::{EXIT_FAILURE, EXIT_USAGE};

const HELP: &str = "\
Longarm: a microVM monitor with an RDMA device

usage: longarm run [OPTION...]              run a machine until it ends
       longarm exec --control SOCKET [--wait SECONDS] -- COMMAND...
                                            run a shell command in a running machine
       longarm stats --control SOCKET [--json]
       longarm pause|resume|shutdown --control SOCKET
       longarm help|version

options of run:
  --config FILE          a machine as JSON; the options below change it
  --image DIR            a guest image: kernel DIR/vmlinuz, initrd DIR/initrd, first disk DIR/root.img (read-only)
  --kernel FILE          bzImage, or ELF with a PVH note or a 64-bit entry
  --initrd FILE
  --cmdline TEXT         kernel command line, instead of console=ttyS0 panic=-1 root=/dev/vda...
  --append TEXT          more words for the kernel command line
  --cpus N               1 to 32 (1)
  --memory SIZE[,hugepages=on]
                         128M to 512G (1G)
  --disk PATH[,ro]       raw image; may be given several times
  --net tap=NAME|fabric[,mac=MAC][,mtu=N]
                         may be given several times; fabric needs --rdma, which carries it
  --rdma fabric=tcp[,listen=ADDR:PORT][,peer=ADDR:PORT]...[,lanes=N][,poll=MICROSECONDS][,send_buffer=SIZE][,mac=MAC]
         [,LIMIT=N]...   limits: contexts pds mrs mr_size mr_entries fast_reg_pages mws cqs cqe qps send_wr recv_wr srqs srq_wr
                         xrcds send_sge recv_sge inline sq_stride rd_atomic gids mcast_groups mcast_qps msg_size
  --vsock PATH|auto      Unix socket towards the guest's vsock (auto with --exec or --control)
  --serial stdio|file=PATH|off
                         (stdio; off with --exec). On a terminal Ctrl-A x ends the machine
  --control SOCKET       Unix socket for the other commands
  --exec COMMAND         run a shell command in the guest of our image, pass on its output and status, power off
  --timeout SECONDS      end the machine after that time
  --log error|warn|info|debug|trace
                         (warn) what is logged on standard error

exit status of run: 0 power-off, 2 wrong option, 66 reset or triple fault, 67 kernel panic, 70 failure of the host or monitor,
  124 timeout, 125 --exec could not run its command, 128+N signal N; with --exec the command's own status
";

/// Runs the command that this process was given; returns its exit status.
pub fn main() -> i32 {
    let args: Option<Vec<String>> = std::env::args_os()
        .skip(1)
        .map(|a| a.into_string().ok())
        .collect();
    let Some(args) = args else {
        eprintln!("longarm: arguments must be UTF-8");
        return EXIT_USAGE;
    };
    let command = match parse(&args) {
        Ok(command) => command,
        Err(e) => {
            eprintln!("longarm: {e}");
            return EXIT_USAGE;
        }
    };
    match command {
        Command::Run(config, level) => run::run(*config, level),
        Command::Exec {
            control,
            wait,
            command,
        } => exec::exec(&control, wait, &command),
        Command::Stats { control, json } => status(client::stats(&control, json)),
        Command::Pause { control } => status(client::pause(&control)),
        Command::Resume { control } => status(client::resume(&control)),
        Command::Shutdown { control } => status(client::shutdown(&control)),
        Command::Help => status(client::print(HELP)),
        Command::Version => status(client::print(concat!(
            "longarm ",
            env!("CARGO_PKG_VERSION"),
            "\n"
        ))),
    }
}

fn status(result: Result<(), client::Error>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("longarm: {e}");
            EXIT_FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_limit() {
        let words: Vec<&str> = HELP.split_whitespace().collect();
        for name in api::RdmaLimits::NAMES {
            assert!(words.contains(name), "{name}");
        }
    }
}
