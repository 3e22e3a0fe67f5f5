//! rdmacm-utils: what is built on the kernel's RDMA CM, and on rsockets above it.

use anyhow::{Result, ensure};

use super::{Entry, LIMIT};
use crate::meeting::{Meeting, Ready};
use crate::vm::Vm;

/// Where the tools are that have no option for it, or nobody gives one.
const PORT: u16 = 7471;

const fn utility(server: &'static str, client: &'static str) -> Utility {
    Utility {
        server,
        client,
        ready: Ready::Cm,
        says: &[],
        short: false,
    }
}

struct Utility {
    server: &'static str,
    client: &'static str,
    ready: Ready,
    says: &'static [&'static str],
    short: bool,
}

impl Utility {
    const fn says(self, says: &'static [&'static str]) -> Utility {
        Utility { says, ..self }
    }

    const fn ready(self, ready: Ready) -> Utility {
        Utility { ready, ..self }
    }

    const fn short(self) -> Utility {
        Utility {
            short: true,
            ..self
        }
    }
}

/// 239.7.7.7, which both sides of mckey name.
const GROUP: Ready = Ready::Group("070707EF");
/// 239.7.7.8. A run of its own has a group of its own: its receiver joins while the run before still sends, and would take those messages.
const NEXT_GROUP: Ready = Ready::Group("080707EF");

/// All but `rstream -T a`, which takes the hang-up of a peer that is done for an error even while its last data wait to be read, and
/// `udpong`: rsockets make address handles for datagrams without a GRH, which RoCE has no use for and the kernel refuses.
/// `rping -V` compares what comes back, `-T v` of the streams does, the other tools say what they counted.
const UTILITIES: &[Utility] = &[
    utility(
        "rping -s -V -C 30 -S 5000",
        "rping -c -V -C 30 -S 5000 -a @server",
    )
    .short(),
    utility("rping -s -V -C 5", "rping -c -V -C 5 -a @server").short(),
    utility(
        "rping -s -v -V -C 10 -S 100",
        "rping -c -v -V -C 10 -S 100 -a @server",
    )
    .says(&["ping data: rdma-ping-9: "])
    .short(),
    utility(
        "rping -s -V -C 4 -S 65535",
        "rping -c -V -C 4 -S 65535 -a @server",
    ),
    // Moves its QPs from state to state itself.
    utility("rping -s -q -V -C 10", "rping -c -q -V -C 10 -a @server"),
    utility(
        "ucmatose -c 5 -C 20 -S 2000",
        "ucmatose -c 5 -C 20 -S 2000 -s @server",
    )
    .says(&["test complete\nreturn status 0"])
    .short(),
    // The connections move to another event channel half way.
    utility("ucmatose -m -c 3", "ucmatose -m -c 3 -s @server").says(&["return status 0"]),
    utility("ucmatose -c 64 -C 2", "ucmatose -c 64 -C 2 -s @server").says(&["return status 0"]),
    utility("udaddy -c 5 -C 10", "udaddy -c 5 -C 10 -s @server")
        .says(&["return status 0"])
        .short(),
    utility(
        "udaddy -c 1 -C 50 -S 1000",
        "udaddy -c 1 -C 50 -S 1000 -s @server",
    )
    .says(&["return status 0"]),
    utility(
        "mckey -m 239.7.7.7 -b @server",
        "mckey -s -m 239.7.7.7 -b @client",
    )
    .ready(GROUP)
    .says(&["return status 0"])
    .short(),
    // The sender joins to send only, and destroys its QP as soon as it has posted.
    utility(
        "mckey -m 239.7.7.8 -b @server -S 1000",
        "mckey -s -o -m 239.7.7.8 -b @client -S 1000",
    )
    .ready(NEXT_GROUP)
    .says(&["return status 0"]),
    utility("cmtime -c 20", "cmtime -c 20 -s @server")
        .ready(Ready::Tcp(PORT))
        .short(),
    utility("cmtime -c 100 -n 4", "cmtime -c 100 -n 4 -s @server").ready(Ready::Tcp(PORT)),
    utility(
        "riostream -S 4096 -C 50 -I 4 -T v",
        "riostream -S 4096 -C 50 -I 4 -T v -s @server",
    )
    .says(&["custom"])
    .short(),
    utility(
        "riostream -S 1000 -C 20 -I 2 -T v -T n",
        "riostream -S 1000 -C 20 -I 2 -T v -T n -s @server",
    )
    .says(&["custom"]),
    utility(
        "rstream -S 10000 -C 50 -I 4 -T v",
        "rstream -S 10000 -C 50 -I 4 -T v -s @server",
    )
    .says(&["custom"])
    .short(),
    utility(
        "rstream -S 1000 -C 20 -I 2 -T v -T r",
        "rstream -S 1000 -C 20 -I 2 -T v -T r -s @server",
    )
    .says(&["custom"]),
    // Without zero-length inline space.
    utility(
        "rstream -i 0 -S 65536 -C 20 -I 2 -T v -T n",
        "rstream -i 0 -S 65536 -C 20 -I 2 -T v -T n -s @server",
    )
    .says(&["custom"]),
    utility("rdma_server", "rdma_client -s @server")
        .says(&["end 0"])
        .short(),
    utility("rdma_xserver -c r", "rdma_xclient -c r -s @server").says(&["end 0"]),
];

/// All of them.
pub fn utilities() -> impl Iterator<Item = Entry> {
    UTILITIES.iter().map(|utility| Entry {
        meeting: Meeting {
            server: utility.server.into(),
            client: utility.client.into(),
            ready: utility.ready,
            serves_on: false,
        },
        says: utility.says,
        short: utility.short,
    })
}

/// `rcopy` takes a file from one VM to the other; its checksum there is the one it had here.
pub fn copied_file(a: &Vm, b: &Vm) -> Result<()> {
    let sum = |vm: &Vm, name: &str| -> Result<String> {
        let command = format!("sha256sum </tmp/{name}");
        Ok(vm.exec(&command, 30)?.ok(&command)?.stdout)
    };
    a.exec("head -c 5000001 /dev/urandom >/tmp/here", 30)?
        .ok("a file to copy")?;
    let meeting = Meeting {
        server: "rcopy".into(),
        client: "rcopy /tmp/here @server:/tmp/there".into(),
        ready: Ready::Cm,
        serves_on: true,
    };
    let outcome = meeting.between(a, b, LIMIT)?;
    ensure!(outcome.ok(), "rcopy:\n{}", outcome.text());
    let (sent, come) = (sum(a, "here")?, sum(b, "there")?);
    ensure!(sent == come, "rcopy: {sent} became {come}");
    Ok(())
}
