//! The few devices of a PC that a modern kernel still looks for. There is no RTC: guests take their time from kvmclock.

mod i8042;
mod power;
mod pvpanic;
mod serial;

pub use i8042::I8042;
pub use power::{GuestEvent, GuestEventSink, PowerControl};
pub use pvpanic::{Pvpanic, PvpanicPci};
pub use serial::{SerialConsole, SerialPort};
