//! Ctrl-C, SIGTERM and SIGHUP: at any moment they end the children and restore the terminal. Only an observation of a
//! program takes its first Ctrl-C as its end ([`spare_first`]).
//!
//! One thread waits for the signals and does everything itself: ends the children, restores the terminal and exits. The
//! rest of the program need not check a flag in each loop. When its children die it runs into errors that are not worth
//! reading, so [`stand_still_if_requested`] stops it at its one place of reporting.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

static REQUESTED: AtomicBool = AtomicBool::new(false);
/// Whether the first Ctrl-C only ends an observation.
static SPARES: AtomicBool = AtomicBool::new(false);
/// Whether the observation is to end.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Has the first Ctrl-C end an observation, whose results are kept, and no program: [`ends_observation`] tells of it.
pub fn spare_first() {
    SPARES.store(true, Ordering::Release);
}

/// Returns whether the observation is to end, and has no Ctrl-C spared any more.
pub fn ends_observation() -> bool {
    ENDS.load(Ordering::Acquire)
}

/// Returns whether a signal has arrived; the program is about to exit.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Acquire)
}

/// Waits for the exit, if a signal has arrived.
pub fn stand_still_if_requested() {
    while requested() {
        thread::park();
    }
}

/// Starts the thread that waits for signals.
///
/// # Errors
///
/// The host refuses the handlers or the thread.
pub fn install() -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            if signal == SIGINT && SPARES.swap(false, Ordering::AcqRel) {
                ENDS.store(true, Ordering::Release);
                eprintln!("\nending; Ctrl-C once more gives up");
                continue;
            }
            REQUESTED.store(true, Ordering::Release);
            crate::children::end_all();
            crate::terminal::restore();
            let what = if signal == SIGINT { "interrupted" } else { "ended by a signal" };
            eprintln!("\n{what}; every program started from here has been ended");
            std::process::exit(128 + signal);
        }
    })?;
    Ok(())
}
