//! Signals as events that a coroutine awaits, as `tokio::signal` has them.
//!
//! A handler may do next to nothing, so it only adds one to an event counter of its signal ([`Signal::receive`] reads
//! that), and the program goes on as if nothing had happened.
//!
//! ```no_run
//! # async fn serve() {}
//! # async fn example() -> Result<(), cops::Errno> {
//! cops::select! {
//!     () = serve() => {}
//!     interrupted = cops::signal::ctrl_c() => {
//!         interrupted?;
//!         cops::println!("until the next time");
//!     }
//! }
//! # Ok(())
//! # }
//! ```

use core::sync::atomic::{AtomicI32, Ordering};

use abi_unix::types::{open, signal as number};
use unix::{Result, file, readiness};

const LIMIT: usize = number::LIMIT as usize;
/// No event counter yet.
const NONE: i32 = -1;

/// Event counters of the signals, open for the rest of the process's life: a handler may be about to use one.
// A descriptor is published with release once it is open; the handler and later callers read it with acquire.
static COUNTERS: [AtomicI32; LIMIT] = [const { AtomicI32::new(NONE) }; LIMIT];

/// Receives one kind of signal.
#[derive(Debug)]
pub struct Signal {
    counter: i32,
}

extern "C" fn on_signal(number: i32) {
    let counter = COUNTERS[number as usize % LIMIT].load(Ordering::Acquire);
    // It cannot fail for want of room: the counter holds more signals than can come.
    let _ = file::write(counter, &1u64.to_ne_bytes());
}

/// Takes a signal of [`abi_unix::types::signal`] over: from now on it does not end the process, and a [`Signal`]
/// receives it. Of several for one signal, one receives each arrival.
///
/// # Errors
///
/// `EINVAL` for a signal that cannot be handled; `EMFILE`, `ENOMEM`.
#[doc(alias("sigaction", "SignalKind"))]
pub fn signal(number: u32) -> Result<Signal> {
    let Some(place) = COUNTERS.get(number as usize) else { return Err(unix::Errno::EINVAL) };
    let existing = place.load(Ordering::Acquire);
    if existing != NONE {
        return Ok(Signal { counter: existing });
    }
    let counter = readiness::event_counter(0, open::CLOEXEC)?;
    if let Err(existing) = place.compare_exchange(NONE, counter.raw(), Ordering::AcqRel, Ordering::Acquire) {
        return Ok(Signal { counter: existing });
    }
    // SAFETY: the handler makes one call to the kernel with an atomic's value, and changes nothing else.
    if let Err(error) = unsafe { unix::signal::handle(number, on_signal) } {
        place.store(NONE, Ordering::Release);
        return Err(error);
    }
    Ok(Signal { counter: counter.into_raw() })
}

impl Signal {
    /// Waits for the signal. Several that came since the last time are one.
    ///
    /// # Errors
    ///
    /// `EBADF` if the program has closed descriptors that it does not own.
    ///
    /// # Cancellation
    ///
    /// Weak. A signal that had been taken by then is lost.
    #[doc(alias = "recv")]
    pub async fn receive(&mut self) -> Result<()> {
        crate::io::read(self.counter, alloc::vec![0; 8]).await.0.map(drop)
    }
}

/// Waits for Ctrl-C at the terminal, which does not end the process any more.
///
/// # Errors
///
/// As [`signal()`].
///
/// # Cancellation
///
/// Weak, as [`Signal::receive`].
pub async fn ctrl_c() -> Result<()> {
    signal(number::INT)?.receive().await
}
