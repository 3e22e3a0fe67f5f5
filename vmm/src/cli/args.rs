//! From arguments to a command.

use std::fs;
use std::path::PathBuf;
use std::str::FromStr;

use api::{
    DiskConfig, MemoryConfig, NetConfig, OptionError, RdmaConfig, SerialConfig, VmConfig,
    VsockConfig,
};
use log::LevelFilter;

/// Seconds that `exec` waits for the guest unless told otherwise: an emulated guest takes its time to boot.
const EXEC_WAIT: u64 = 120;

/// What is to be done.
#[derive(Debug, PartialEq)]
pub enum Command {
    /// Run a machine; logs of this level are shown.
    Run(Box<VmConfig>, LevelFilter),
    /// Run a command in a running machine.
    Exec {
        /// The machine's control socket.
        control: PathBuf,
        /// Seconds to wait for the guest's agent.
        wait: u64,
        /// The shell command.
        command: String,
    },
    /// Print counters.
    Stats {
        /// The machine's control socket.
        control: PathBuf,
        /// As JSON, not as a table.
        json: bool,
    },
    /// Hold the vCPUs.
    Pause {
        /// The machine's control socket.
        control: PathBuf,
    },
    /// Let the vCPUs go on.
    Resume {
        /// The machine's control socket.
        control: PathBuf,
    },
    /// Power the machine off.
    Shutdown {
        /// The machine's control socket.
        control: PathBuf,
    },
    /// Print how to use the command.
    Help,
    /// Print the version.
    Version,
}

const COMMANDS: &str = "run, exec, stats, pause, resume, shutdown, help or version";

/// Reads the arguments, the command's own name not among them.
pub fn parse(args: &[String]) -> Result<Command, OptionError> {
    let Some((command, rest)) = args.split_first() else {
        return Err(OptionError::new("command", "none given", COMMANDS));
    };
    if rest
        .iter()
        .take_while(|a| *a != "--")
        .any(|a| a == "--help")
    {
        return Ok(Command::Help);
    }
    match command.as_str() {
        "run" => parse_run(rest),
        "exec" => parse_exec(rest),
        "stats" => {
            let mut json = false;
            let control = parse_control(rest, &mut |option, _| match option {
                "--json" => {
                    json = true;
                    Ok(true)
                }
                _ => Ok(false),
            })?;
            Ok(Command::Stats { control, json })
        }
        "pause" => Ok(Command::Pause {
            control: parse_control(rest, &mut |_, _| Ok(false))?,
        }),
        "resume" => Ok(Command::Resume {
            control: parse_control(rest, &mut |_, _| Ok(false))?,
        }),
        "shutdown" => Ok(Command::Shutdown {
            control: parse_control(rest, &mut |_, _| Ok(false))?,
        }),
        "help" | "--help" | "-h" => Ok(Command::Help),
        "version" | "--version" | "-V" => Ok(Command::Version),
        other => Err(OptionError::new(
            "command",
            format!("unknown '{other}'"),
            COMMANDS,
        )),
    }
}

/// The arguments one by one; `--option=value` counts as `--option value`.
struct Args<'a> {
    rest: std::slice::Iter<'a, String>,
    option: &'a str,
    attached: Option<&'a str>,
}

impl<'a> Args<'a> {
    fn new(args: &'a [String]) -> Self {
        Self {
            rest: args.iter(),
            option: "",
            attached: None,
        }
    }

    /// The next option, `--` included.
    fn next(&mut self) -> Result<Option<&'a str>, OptionError> {
        if let Some(value) = self.attached.take() {
            return Err(OptionError::new(
                self.option,
                format!("takes no value, '{value}' given"),
                "the option alone",
            ));
        }
        let Some(arg) = self.rest.next() else {
            return Ok(None);
        };
        let (option, attached) = match arg.split_once('=') {
            Some((option, value)) if option.starts_with("--") => (option, Some(value)),
            _ => (arg.as_str(), None),
        };
        (self.option, self.attached) = (option, attached);
        Ok(Some(option))
    }

    fn value(&mut self) -> Result<&'a str, OptionError> {
        self.attached
            .take()
            .or_else(|| self.rest.next().map(String::as_str))
            .ok_or_else(|| OptionError::new(self.option, "no value given", "one value"))
    }

    fn parse<T: FromStr>(&mut self, allowed: &str) -> Result<T, OptionError> {
        let value = self.value()?;
        value
            .parse()
            .map_err(|_| OptionError::new(self.option, format!("'{value}'"), allowed))
    }

    fn unknown(&self, allowed: &str) -> OptionError {
        OptionError::new(self.option, "unknown option", allowed)
    }
}

fn parse_run(args: &[String]) -> Result<Command, OptionError> {
    let mut config = VmConfig::new("");
    let mut level = LevelFilter::Warn;
    let mut args = Args::new(args);
    while let Some(option) = args.next()? {
        match option {
            "--config" => {
                if config != VmConfig::new("") {
                    return Err(OptionError::new(
                        option,
                        "given after other options",
                        "--config first",
                    ));
                }
                config = read_config(args.value()?)?;
            }
            "--image" => apply_image(&mut config, args.value()?)?,
            "--kernel" => config.kernel = args.value()?.into(),
            "--initrd" => config.initrd = Some(args.value()?.into()),
            "--cmdline" => config.cmdline = Some(args.value()?.into()),
            "--append" => config.append = Some(args.value()?.into()),
            "--cpus" => config.cpus = args.parse("1 to 32")?,
            "--memory" => config.memory = MemoryConfig::parse(args.value()?)?,
            "--disk" => config.disks.push(DiskConfig::parse(args.value()?)?),
            "--net" => config.net.push(NetConfig::parse(args.value()?)?),
            "--rdma" if config.rdma.is_some() => {
                return Err(OptionError::new(option, "given twice", "one RDMA device"));
            }
            "--rdma" => config.rdma = Some(RdmaConfig::parse(args.value()?)?),
            "--vsock" => config.vsock = Some(VsockConfig::parse(args.value()?)?),
            "--serial" => config.serial = Some(SerialConfig::parse(args.value()?)?),
            "--control" => config.control = Some(args.value()?.into()),
            "--exec" => config.exec = Some(args.value()?.into()),
            "--timeout" => config.timeout = Some(args.parse("seconds, 1 or more")?),
            "--log" => level = args.parse("error, warn, info, debug, trace or off")?,
            _ => return Err(args.unknown("the options that `longarm help` lists")),
        }
    }
    if config.kernel.as_os_str().is_empty() {
        return Err(OptionError::new(
            "--kernel",
            "not given",
            "a kernel, by --kernel FILE, --image DIR or --config FILE",
        ));
    }
    config.validate()?;
    Ok(Command::Run(Box::new(config), level))
}

fn read_config(path: &str) -> Result<VmConfig, OptionError> {
    let wrong = |what: String| {
        OptionError::new(
            "--config",
            format!("{path}: {what}"),
            "a JSON object as docs/running.md describes it",
        )
    };
    let text = fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
    serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))
}

/// Kernel, initrd and root disk of a directory made by `resources/image/build.sh`.
fn apply_image(config: &mut VmConfig, dir: &str) -> Result<(), OptionError> {
    let dir = PathBuf::from(dir);
    for file in ["vmlinuz", "initrd", "root.img"] {
        if !dir.join(file).is_file() {
            return Err(OptionError::new(
                "--image",
                format!("{} has no file {file}", dir.display()),
                "a directory with vmlinuz, initrd and root.img",
            ));
        }
    }
    config.kernel = dir.join("vmlinuz");
    config.initrd = Some(dir.join("initrd"));
    let root = DiskConfig {
        path: dir.join("root.img"),
        readonly: true,
    };
    config.disks.insert(0, root);
    Ok(())
}

/// Reads `--control SOCKET` and whatever `other` takes.
fn parse_control(
    args: &[String],
    other: &mut dyn FnMut(&str, &mut Args<'_>) -> Result<bool, OptionError>,
) -> Result<PathBuf, OptionError> {
    let mut control = None;
    let mut args = Args::new(args);
    while let Some(option) = args.next()? {
        if option == "--control" {
            control = Some(args.value()?.into());
        } else if !other(option, &mut args)? {
            return Err(args.unknown("--control SOCKET, and what `longarm help` lists"));
        }
    }
    control.ok_or_else(|| OptionError::new("--control", "not given", "a machine's control socket"))
}

fn parse_exec(args: &[String]) -> Result<Command, OptionError> {
    let (options, command) = match args.iter().position(|a| a == "--") {
        Some(at) => (&args[..at], &args[at + 1..]),
        None => (args, [].as_slice()),
    };
    let mut wait = EXEC_WAIT;
    let control = parse_control(options, &mut |option, args| match option {
        "--wait" => {
            wait = args.parse("seconds")?;
            Ok(true)
        }
        _ => Ok(false),
    })?;
    // As ssh does: the words, with spaces between them, are a line for the guest's shell.
    let command = command.join(" ");
    if command.trim().is_empty() {
        return Err(OptionError::new(
            "exec",
            "no command given",
            "a shell command after --",
        ));
    }
    Ok(Command::Exec {
        control,
        wait,
        command,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(String::from).collect()
    }

    fn config(line: &str) -> VmConfig {
        match parse(&words(line)) {
            Ok(Command::Run(config, _)) => *config,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn a_machine_is_read_from_options() {
        let c = config(
            "run --kernel k --cpus=4 --memory 2G --disk a,ro --disk=b --net fabric \
             --rdma fabric=tcp,listen=127.0.0.1:1 --serial off --timeout 9",
        );
        assert_eq!((c.cpus, c.memory.size.0, c.disks.len()), (4, 2 << 30, 2));
        assert_eq!(c.disks[1].path, PathBuf::from("b"));
        assert_eq!(c.timeout, Some(9));
    }

    #[test]
    fn every_wrong_line_is_answered_by_one_line_that_names_the_option() {
        for (line, option) in [
            ("", "command"),
            ("rum", "command"),
            ("run", "--kernel"),
            ("run --kernel", "--kernel"),
            ("run --kernel k --cpus", "--cpus"),
            ("run --kernel k --cpus 0", "--cpus"),
            ("run --kernel k --cpus two", "--cpus"),
            ("run --kernel k --memory 1", "--memory"),
            ("run --kernel k --memory 4Q", "--memory"),
            ("run --kernel k --disk a,wo", "--disk"),
            ("run --kernel k --net fabric", "--net"),
            ("run --kernel k --rdma fabric=tcp", "--rdma"),
            ("run --kernel k --timeout 0", "--timeout"),
            ("run --kernel k --log loud", "--log"),
            ("run --kernel k --colour", "--colour"),
            ("run --config /nonexistent", "--config"),
            ("run --image /nonexistent", "--image"),
            ("stats", "--control"),
            ("stats --control s --json=yes", "--json"),
            ("pause --control s --hard", "--hard"),
            ("exec --control s", "exec"),
            ("exec --control s --wait soon -- true", "--wait"),
        ] {
            let text = parse(&words(line)).unwrap_err().to_string();
            assert!(text.starts_with(option), "{line}: {text}");
            assert!(text.contains("; allowed: "), "{line}: {text}");
            assert_eq!(text.lines().count(), 1, "{line}: {text}");
        }
    }

    #[test]
    fn options_change_a_configuration_file_but_must_follow_it() {
        let path = std::env::temp_dir().join(format!("longarm-args-{}.json", std::process::id()));
        fs::write(&path, r#"{"kernel": "k", "cpus": 2}"#).unwrap();
        let line = format!("run --config {} --cpus 3", path.display());
        assert_eq!(config(&line).cpus, 3);
        let line = format!("run --cpus 3 --config {}", path.display());
        assert!(parse(&words(&line)).is_err());
        fs::write(&path, r#"{"kernel": "k", "cpu": 2}"#).unwrap();
        let line = format!("run --config {}", path.display());
        let text = parse(&words(&line)).unwrap_err().to_string();
        assert!(text.contains("unknown field `cpu`"), "{text}");
        assert_eq!(text.lines().count(), 1);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn exec_takes_everything_after_the_dashes() {
        let line = words("exec --control s -- echo --control x");
        assert_eq!(
            parse(&line).unwrap(),
            Command::Exec {
                control: "s".into(),
                wait: EXEC_WAIT,
                command: "echo --control x".into()
            }
        );
    }
}
