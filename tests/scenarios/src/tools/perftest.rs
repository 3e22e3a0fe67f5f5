//! perftest: which of its tools are run with which options. Message sizes and counts are small: what is asked is whether it works.

use super::Entry;
use crate::perftest::Run;

/// Tools, each of which is run with each of the options.
struct Block {
    tools: &'static [&'static str],
    options: &'static [&'static str],
    size: u32,
    iterations: u32,
    /// Each must stand in what a side prints.
    says: &'static [&'static str],
    /// Which of the options belong to the short list, of the first tool.
    short: &'static [&'static str],
}

/// Those whose length is free.
const BLOCK: Block = Block {
    tools: &[],
    options: &[],
    size: 1000,
    iterations: 100,
    says: &["#bytes"],
    short: &[],
};

/// On every transport that has receives, as many are posted as messages come: nothing is repeated on UC and UD.
const MANY: u32 = 10;

/// perftest's atomics are of 8 bytes, and it takes no other size.
const ATOMIC: u32 = 8;

/// The group as a GID, which is of the kind that the VMs' IPv4 addresses have.
const MULTICAST: &str = "-c UD -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:7:7:9";

const BANDWIDTH: &[&str] = &["ib_send_bw", "ib_write_bw", "ib_read_bw"];
const LATENCY: &[&str] = &["ib_send_lat", "ib_write_lat", "ib_read_lat"];

/// What every bandwidth tool takes, with few QPs and with 64. WRITE alone refuses completion events.
const OPTIONS: &[&str] = &[
    "",
    "-b",
    "-R",
    "-R -b",
    "-z",
    "-t 4 -Q 1",
    "-l 4 -t 64",
    "--use_old_post_send",
    "--no_lock",
    "--mr_per_qp -q 4",
];
const MANY_QPS: &[&str] = &["-q 64", "-q 64 -b", "-q 64 -R"];
const EVENTS: &[&str] = &["-e", "-e -b", "-e -R", "-e -q 8"];
const LATENCY_OPTIONS: &[&str] = &["", "-R", "-z", "--use_old_post_send"];

const RELIABLE: &[Block] = &[
    Block {
        tools: BANDWIDTH,
        options: OPTIONS,
        short: &["-R -b", "-l 4 -t 64"],
        ..BLOCK
    },
    Block {
        tools: BANDWIDTH,
        options: MANY_QPS,
        iterations: MANY,
        ..BLOCK
    },
    Block {
        tools: &["ib_read_bw", "ib_send_bw"],
        options: EVENTS,
        short: &["-e -b"],
        ..BLOCK
    },
    Block {
        tools: LATENCY,
        options: LATENCY_OPTIONS,
        ..BLOCK
    },
    Block {
        tools: &["ib_send_lat", "ib_read_lat"],
        options: &["-e"],
        short: &["-e"],
        ..BLOCK
    },
    Block {
        tools: &["ib_read_bw", "ib_read_lat"],
        options: &["-o 1", "-o 16"],
        ..BLOCK
    },
    Block {
        tools: &["ib_atomic_bw"],
        options: OPTIONS,
        size: ATOMIC,
        ..BLOCK
    },
    Block {
        tools: &["ib_atomic_bw"],
        options: MANY_QPS,
        size: ATOMIC,
        iterations: MANY,
        short: &["-q 64"],
        ..BLOCK
    },
    Block {
        tools: &["ib_atomic_bw"],
        options: EVENTS,
        size: ATOMIC,
        ..BLOCK
    },
    Block {
        tools: &["ib_atomic_lat", "ib_atomic_bw"],
        options: &[
            "-A CMP_AND_SWAP",
            "-A CMP_AND_SWAP -o 1",
            "-A FETCH_AND_ADD -o 1",
        ],
        size: ATOMIC,
        short: &["-A CMP_AND_SWAP"],
        ..BLOCK
    },
    Block {
        tools: &["ib_atomic_lat"],
        options: LATENCY_OPTIONS,
        size: ATOMIC,
        ..BLOCK
    },
    Block {
        tools: &["ib_atomic_lat"],
        options: &["-e"],
        size: ATOMIC,
        ..BLOCK
    },
];

const OTHERS: &[Block] = &[
    Block {
        tools: &["ib_send_bw"],
        options: &[
            "-c UC",
            "-c UC -b",
            "-c UC -e",
            "-c UC -q 8",
            "-c UC --use_old_post_send",
            "-c UD",
            "-c UD -b",
            "-c UD -e",
            "-c UD -q 8",
            "-c UD -R",
            "-c UD --use_old_post_send",
            MULTICAST,
            "-c UD --use-srq",
        ],
        short: &["-c UC -e", "-c UD -R", MULTICAST],
        ..BLOCK
    },
    Block {
        tools: &["ib_send_bw"],
        options: &["-c UC -q 64", "-c UD -q 64"],
        iterations: MANY,
        ..BLOCK
    },
    Block {
        tools: &["ib_send_lat"],
        options: &[
            "-c UC", "-c UC -e", "-c UD", "-c UD -e", "-c UD -R", MULTICAST,
        ],
        ..BLOCK
    },
    Block {
        tools: &["ib_write_bw"],
        options: &[
            "-c UC",
            "-c UC -b",
            "-c UC -q 8",
            "-c UC --use_old_post_send",
        ],
        ..BLOCK
    },
    Block {
        tools: &["ib_write_lat"],
        options: &["-c UC"],
        ..BLOCK
    },
    Block {
        tools: &["ib_write_bw", "ib_write_lat"],
        options: &[
            "--write_with_imm",
            "--write_with_imm -R",
            "--write_with_imm -c UC",
        ],
        short: &["--write_with_imm"],
        ..BLOCK
    },
    Block {
        tools: &["ib_write_bw"],
        options: &["--write_with_imm -b", "--write_with_imm -q 8"],
        ..BLOCK
    },
    Block {
        tools: &["ib_send_bw"],
        options: &[
            "--use-srq",
            "--use-srq -b",
            "--use-srq -e",
            "--use-srq -R",
            "--use-srq -q 64",
            "--use-srq -q 8 -R -e",
            "--recv_post_list 10",
        ],
        short: &["--use-srq -b"],
        ..BLOCK
    },
    Block {
        tools: &["ib_send_lat"],
        options: &["--use-srq", "--use-srq -e"],
        ..BLOCK
    },
    Block {
        tools: BANDWIDTH,
        options: &["", "-b"],
        size: 1,
        ..BLOCK
    },
    Block {
        tools: BANDWIDTH,
        options: &["", "-b"],
        size: 1 << 20,
        iterations: MANY,
        ..BLOCK
    },
];

const NEW_API: &str = "ibv_wr* API     : ON";

/// With a perftest that knows the device. Latency tools send inline what is short enough, bandwidth tools what they are told to.
const PATCHED: &[Block] = &[
    Block {
        tools: BANDWIDTH,
        options: &["", "-b", "-R", "-l 4 -t 64", "-q 8"],
        says: &["#bytes", NEW_API],
        ..BLOCK
    },
    Block {
        tools: &["ib_send_bw", "ib_read_bw"],
        options: &["-e"],
        says: &["#bytes", NEW_API],
        ..BLOCK
    },
    Block {
        tools: &["ib_atomic_bw", "ib_atomic_lat"],
        options: &["-A CMP_AND_SWAP", "-A FETCH_AND_ADD", "-R"],
        size: ATOMIC,
        says: &["#bytes", NEW_API],
        ..BLOCK
    },
    Block {
        tools: &["ib_send_bw"],
        options: &["-c UC", "-c UD", "-c UD -R", "--use-srq -q 8"],
        says: &["#bytes", NEW_API],
        ..BLOCK
    },
    Block {
        tools: &["ib_write_bw"],
        options: &["-c UC", "--write_with_imm"],
        says: &["#bytes", NEW_API],
        ..BLOCK
    },
    Block {
        tools: BANDWIDTH,
        options: &["-c XRC -q 4"],
        says: &["#bytes", NEW_API],
        ..BLOCK
    },
    Block {
        tools: &["ib_atomic_bw"],
        options: &["-c XRC"],
        size: ATOMIC,
        says: &["#bytes", NEW_API],
        ..BLOCK
    },
    Block {
        tools: &["ib_send_bw", "ib_write_bw"],
        options: &["-I 900", "-I 900 -b -l 4", "-I 900 -R", "-I 900 -c XRC"],
        size: 900,
        says: &["#bytes", NEW_API, "Max inline data : 900[B]"],
        ..BLOCK
    },
    Block {
        tools: &["ib_send_lat"],
        options: &["", "-e", "-R", "-c UC", "-c XRC"],
        size: 236,
        says: &["#bytes", NEW_API, "Max inline data : 236[B]"],
        ..BLOCK
    },
    Block {
        tools: &["ib_write_lat"],
        options: &["", "-R", "-c UC", "-c XRC", "--write_with_imm"],
        size: 220,
        says: &["#bytes", NEW_API, "Max inline data : 220[B]"],
        ..BLOCK
    },
    Block {
        tools: &["ib_send_lat"],
        options: &["-c UD"],
        size: 188,
        says: &["#bytes", NEW_API, "Max inline data : 188[B]"],
        ..BLOCK
    },
    Block {
        tools: &["ib_send_lat", "ib_write_lat"],
        options: &["--use_old_post_send"],
        size: 200,
        says: &["#bytes", "ibv_wr* API     : OFF", "Max inline data : 2"],
        ..BLOCK
    },
];

/// Runs over RC, without shared receive queues.
pub fn reliable() -> impl Iterator<Item = Entry> {
    entries(RELIABLE, 18_000, "")
}

/// The other transports, shared receive queues, immediate data, multicast, short and long messages.
pub fn others() -> impl Iterator<Item = Entry> {
    entries(OTHERS, 18_400, "")
}

/// What a perftest that knows the device does beside the above: inline data and the new post API.
pub fn patched() -> impl Iterator<Item = Entry> {
    // Without it perftest 25.01 asks any device that it posts to by the new API for a property of mlx5's (mended since).
    entries(PATCHED, 18_700, "--no_ddp")
}

/// A block's runs, all with the option `common` too.
fn entries(
    blocks: &'static [Block],
    first_port: u16,
    common: &'static str,
) -> impl Iterator<Item = Entry> {
    let runs = blocks.iter().flat_map(move |block| {
        let tools = block.tools.iter().enumerate();
        tools.flat_map(move |(place, tool)| {
            block.options.iter().map(move |options| {
                let run = Run {
                    tool,
                    size: block.size,
                    iterations: block.iterations,
                    options: format!("{options} {common}"),
                };
                (run, block.says, place == 0 && block.short.contains(options))
            })
        })
    });
    runs.zip(first_port..)
        .map(|((run, says, short), port)| Entry {
            meeting: run.meeting(port),
            says,
            short,
        })
}
