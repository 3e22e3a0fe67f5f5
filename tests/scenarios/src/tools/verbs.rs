//! The pingpongs of ibverbs-utils, qperf and fio.

use anyhow::Result;

use super::Entry;
use crate::meeting::{Meeting, Ready};
use crate::verbs::{pingpong_meeting, roce_v2_index};
use crate::vm::Vm;

/// Each checks contents (`-c`). Not `-t -e` together: with time stamps the tool takes an event whose completion it has polled already for
/// an error, and such events are legal.
const PINGPONGS: &[(&str, &[&str])] = &[
    (
        "ibv_rc_pingpong",
        &[
            "",
            "-e",
            "-t",
            "-N",
            "-N -e",
            "-s 100000 -m 4096",
            "-s 1 -r 2",
        ],
    ),
    ("ibv_uc_pingpong", &["", "-e", "-s 100000"]),
    ("ibv_ud_pingpong", &["", "-e", "-s 1024"]),
    ("ibv_srq_pingpong", &["", "-e", "-q 64 -r 128"]),
];

/// Those of the short list: time stamps, and the new post API (`-N`) with completion events.
const SHORT: &[&str] = &["-t", "-N -e"];

/// All pingpongs, by the GID of the VMs' IPv4 addresses, whose index is asked of one.
pub fn pingpongs(vm: &Vm) -> Result<impl Iterator<Item = Entry> + use<>> {
    let index = roce_v2_index(vm)?;
    let runs = PINGPONGS
        .iter()
        .flat_map(|(tool, all)| all.iter().map(move |options| (tool, options)));
    Ok(runs
        .zip(19_000..)
        .map(move |((tool, options), port)| Entry {
            meeting: pingpong_meeting(tool, options, port, index),
            says: &["iters in"],
            short: SHORT.contains(options),
        }))
}

/// The tests of qperf that connect by the CM. The last two compare what each atomic gives back.
const QPERF: &[&str] = &[
    "rc_bw",
    "rc_bi_bw",
    "rc_lat",
    "rc_rdma_write_bw",
    "rc_rdma_write_lat",
    "rc_rdma_write_poll_lat",
    "rc_rdma_read_bw",
    "rc_rdma_read_lat",
    "rc_compare_swap_mr",
    "rc_fetch_add_mr",
    "ver_rc_compare_swap",
    "ver_rc_fetch_add",
];

/// qperf, over RoCE as it has to be: with `-cm1`.
pub fn qperf() -> impl Iterator<Item = Entry> {
    QPERF.iter().zip(19_100..).map(|(test, port)| Entry {
        meeting: Meeting {
            server: format!("qperf -lp {port}"),
            client: format!("qperf -lp {port} @server -cm1 -t 1 {test}"),
            ready: Ready::Tcp(port),
            serves_on: true,
        },
        says: std::slice::from_ref(test),
        short: false,
    })
}

/// By what fio's client moves data (it always writes, its server reads), and further options of client and server.
const FIO: &[(&str, &str, &str)] = &[
    // The receiver verifies every block as it comes. It can be slower than the sender, whose queue pair knows no patience with a receiver
    // that is not ready: there are receives for all that is sent.
    (
        "send",
        "--bs=256k --iodepth=4 --verify=crc32c --do_verify=0",
        "--bs=256k --iodepth=32 --verify=crc32c",
    ),
    ("write", "--bs=64k --iodepth=8", "--bs=64k --iodepth=8"),
    ("read", "--bs=64k --iodepth=8", "--bs=64k --iodepth=8"),
];

/// `fio --ioengine=rdma`.
pub fn fio() -> impl Iterator<Item = Entry> {
    FIO.iter()
        .zip(19_200..)
        .map(|((verb, asks, serves), port)| {
            let common = format!("fio --name=rdma --ioengine=rdma --port={port} --size=8m");
            Entry {
                meeting: Meeting {
                    server: format!("{common} --rw=read {serves}"),
                    client: format!("{common} --hostname=@server --rw=write --verb={verb} {asks}"),
                    // A job of fio is a process of its own.
                    ready: Ready::CmPort(port),
                    serves_on: false,
                },
                says: &["err= 0"],
                short: false,
            }
        })
}
