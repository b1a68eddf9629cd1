//! Records of the crate `log` on standard error.
//!
//! ```no_run
//! # fn example() {
//! cops::logging::init(log::LevelFilter::Info).expect("no other logger was chosen");
//! log::info!("listening");
//! # }
//! ```

use core::fmt;

use log::{LevelFilter, Log, Metadata, Record, SetLoggerError};

use crate::time::Duration;

/// The logger. It prints up to the crate's own maximum level, so a record that is not printed costs a comparison.
struct ConsoleLogger;

impl Log for ConsoleLogger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            crate::eprintln!("{}", Line { now_ns: crate::time::now_ns(), record });
        }
    }

    fn flush(&self) {}
}

/// A record as it is printed: seconds since the machine started, level, module, message.
struct Line<'a> {
    now_ns: u64,
    record: &'a Record<'a>,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (now, record) = (Duration::from_nanos(self.now_ns).as_secs_f64(), self.record);
        write!(formatter, "[{now:12.6} {:5} {}] {}", record.level(), record.target(), record.args())
    }
}

/// Prints the records of all crates, up to this level, on standard error.
///
/// # Errors
///
/// If there is a logger already.
#[doc(alias("env_logger", "set_logger"))]
pub fn init(level: LevelFilter) -> Result<(), SetLoggerError> {
    log::set_logger(&ConsoleLogger)?;
    log::set_max_level(level);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_line_has_time_level_and_module() {
        let arguments = format_args!("{} left", 3);
        let record = Record::builder().args(arguments).level(log::Level::Warn).target("pool").build();
        let line = Line { now_ns: 1_500_000_000, record: &record };
        assert_eq!(line.to_string(), "[    1.500000 WARN  pool] 3 left");
    }

    #[test]
    fn there_is_one_logger() {
        assert!(init(LevelFilter::Warn).is_ok());
        assert!(init(LevelFilter::Trace).is_err());
        assert_eq!(log::max_level(), LevelFilter::Warn);
        let of = |level| ConsoleLogger.enabled(&Metadata::builder().level(level).build());
        assert_eq!((of(log::Level::Warn), of(log::Level::Info)), (true, false));
    }
}
