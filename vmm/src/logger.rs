//! Log lines on standard error.

use std::io::Write;
use std::sync::OnceLock;
use std::time::Instant;

use log::{LevelFilter, Log, Metadata, Record};

struct Stderr {
    start: Instant,
}

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            // One write per line, so that lines of several threads do not mix. A console in raw mode needs the return.
            let line = format!(
                "longarm: {:.3} {} {}: {}\r\n",
                self.start.elapsed().as_secs_f64(),
                record.level().as_str().to_ascii_lowercase(),
                record.target(),
                record.args()
            );
            let _ = std::io::stderr().lock().write_all(line.as_bytes());
        }
    }

    fn flush(&self) {}
}

static LOGGER: OnceLock<Stderr> = OnceLock::new();

/// Starts logging at `level`. Times are seconds since the first call.
pub fn init(level: LevelFilter) {
    let logger = LOGGER.get_or_init(|| Stderr {
        start: Instant::now(),
    });
    // A second call only changes the level.
    let _ = log::set_logger(logger);
    log::set_max_level(level);
}
