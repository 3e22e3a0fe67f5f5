//! rdma-core's own test suite (package python3-pyverbs) in a guest, against the list of skips in `docs/verbs.md`.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::verbs::roce_v2_index;
use crate::vm::{Lab, Vm, VmSpec, free_port};

/// Runs in the guest.
const RUNNER: &str = include_str!("verbs_suite.py");

/// Where the skips that are right stand, each with its reason.
const EXPECTED: &str = include_str!("../../../docs/verbs.md");

/// What became of a case.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Ok,
    Skipped,
    Failed,
}

/// A case of the suite, as the runner tells of it.
struct Case<'a> {
    verdict: Verdict,
    seconds: f64,
    name: &'a str,
    why: &'a str,
}

/// No case fails, and those that `docs/verbs.md` names are skipped, no more and no fewer.
pub fn verbs_suite(lab: &Lab) -> Result<()> {
    let vm = lab.boot(VmSpec::new("a").args(&["--memory", "1G"]).fabric(
        free_port()?,
        &[],
        "10.0.0.1/24",
    ))?;
    vm.ready()?;
    let told = run(&vm)?;
    std::fs::write(lab.out.join("told"), &told)?;
    let suite = vm
        .exec(". /etc/os-release; echo $VERSION_CODENAME", 30)?
        .ok("the guest's release")?
        .stdout;
    let cases = cases(&told)?;
    judge(&cases, &expected(suite.trim())?, &told)
}

/// Runs the suite and gives what the runner told.
fn run(vm: &Vm) -> Result<String> {
    // Some cases want huge pages.
    let prepare = "set -e; echo 8 >/proc/sys/vm/nr_hugepages; mkdir -p /tmp/suite; \
        cp -r /usr/share/doc/rdma-core/tests /tmp/suite/; find /tmp/suite -name '*.gz' -exec gunzip {} +";
    vm.exec(prepare, 60)?.ok("a copy of the suite")?;
    vm.exec(
        &format!("cat >/tmp/suite/runner.py <<'END'\n{RUNNER}\nEND"),
        30,
    )?
    .ok("the runner")?;
    let gid = roce_v2_index(vm)?;
    let command = format!(
        "cd /tmp/suite && python3 -B runner.py /tmp/suite $(ls /sys/class/infiniband | head -n 1) 1 {gid} 2>&1"
    );
    let output = vm.start(&command)?.finish(Duration::from_secs(900))?;
    Ok(output.stdout)
}

fn cases(told: &str) -> Result<Vec<Case<'_>>> {
    told.lines()
        .filter_map(|line| line.strip_prefix("case\t"))
        .map(|line| {
            let mut words = line.splitn(4, '\t');
            let mut word = || words.next().with_context(|| format!("case {line:?}"));
            let verdict = match word()? {
                "ok" => Verdict::Ok,
                "skipped" => Verdict::Skipped,
                "failed" => Verdict::Failed,
                other => bail!("no verdict: {other:?}"),
            };
            let seconds = word()?.parse()?;
            let name = word()?;
            let name = name.strip_prefix("tests.").unwrap_or(name);
            Ok(Case {
                verdict,
                seconds,
                name,
                why: word()?,
            })
        })
        .collect()
}

/// Names of the cases that may be skipped with a release: first column of the table below the heading that names it.
fn expected(suite: &str) -> Result<BTreeSet<&'static str>> {
    let heading = format!("({suite})");
    let mut lines = EXPECTED
        .lines()
        .skip_while(|line| !(line.starts_with("## ") && line.ends_with(&heading)));
    lines
        .next()
        .with_context(|| format!("docs/verbs.md has no heading for {suite}"))?;
    Ok(lines
        .take_while(|line| !line.starts_with("## "))
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect())
}

fn judge(cases: &[Case], expected: &BTreeSet<&str>, told: &str) -> Result<()> {
    let count = |verdict| cases.iter().filter(|case| case.verdict == verdict).count();
    let mut wrong = Vec::new();
    for case in cases {
        match case.verdict {
            Verdict::Failed => wrong.push(format!("failed: {}: {}", case.name, case.why)),
            Verdict::Skipped if !expected.contains(case.name) => {
                wrong.push(format!("skipped: {}: {}", case.name, case.why));
            }
            _ => {}
        }
    }
    let skipped: BTreeSet<&str> = cases
        .iter()
        .filter(|case| case.verdict == Verdict::Skipped)
        .map(|case| case.name)
        .collect();
    for name in expected.difference(&skipped) {
        wrong.push(format!("not skipped, though docs/verbs.md says so: {name}"));
    }
    if !told.lines().any(|line| line == "end") {
        let mut last = told.lines().filter(|line| line.starts_with("start\t"));
        wrong.push(format!(
            "it did not come to its end; last: {:?}",
            last.next_back()
        ));
    }
    let apart = told.lines().find_map(|line| line.strip_prefix("apart\t"));
    let slow: f64 = cases.iter().map(|case| case.seconds).sum();
    println!(
        "verbs-suite: {} cases for one vendor's hardware left out; {slow:.0} s in {} cases",
        apart.unwrap_or("?"),
        cases.len()
    );
    println!(
        "verbs-suite: ok {}, skipped {}, failed {}",
        count(Verdict::Ok),
        count(Verdict::Skipped),
        count(Verdict::Failed)
    );
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    ensure!(count(Verdict::Ok) > 0, "no case ran:\n{told}");
    Ok(())
}
