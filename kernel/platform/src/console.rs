//! The console: the machine's serial line, or the firmware's console until the serial line is found.
//!
//! Output goes to the UART's ring and leaves with its interrupts; with a full ring the writer sends by polling, so
//! output is never lost and no other task is needed. Polling under the lock is for the kernel's own few lines. Output
//! of programs asks for [room](console_room) first and waits without the lock: otherwise a program could keep a hart,
//! and all others that print, for as long as a slow or stalled line takes. A panic may come while the console is
//! locked; its text goes to the device directly then. From its first word on no other hart writes any more: a hart that
//! tries waits for the end of the machine, which is near.
//!
//! Input waits in a ring until it is read. The wait queues are the kernel's: any number of tasks may wait, and a list
//! of any length needs a heap, which is made later than the console. The kernel is notified of typed bytes, and of room
//! that it has asked for.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

use drivers::uart::{self, Uart, UartKind};
use hal_api::Machine as _;
use heapless::Vec;
use spin::{Mutex, Once};

use crate::description::Serial;
use crate::registers::Mapped;
use crate::{Machine, machine};

/// Number of attempts of a panic to get the lock.
const PANIC_ATTEMPTS: usize = 1 << 16;

static CONSOLE: Mutex<Console> = Mutex::new(Console { uart: None, output: Output::Polled, awaited: None });
/// Registers of the device, for panics.
static DEVICE: Once<(Mapped, UartKind)> = Once::new();
/// Whether a hart reports the kernel's end.
static REPORTING: AtomicBool = AtomicBool::new(false);
/// Function to call on input, and when there is room that was asked for.
static LISTENER: Once<fn()> = Once::new();
/// Function to call on a break.
static BREAK_LISTENER: Once<fn()> = Once::new();

struct Console {
    uart: Option<Uart<Mapped>>,
    output: Output,
    /// The number of waiting bytes at which the listener is to be called, if a task waits for that.
    awaited: Option<usize>,
}

impl Console {
    /// Has the listener called when at most so many bytes wait for the device.
    fn await_level(&mut self, level: usize) {
        self.awaited = Some(self.awaited.map_or(level, |other| other.max(level)));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Output {
    Polled,
    Interrupts,
}

/// Takes over the serial line.
pub fn start(serial: &Serial) {
    let Some(registers) = Mapped::new((serial.device.address, serial.device.length)) else { return };
    let mut uart = Uart::new(registers, serial.kind);
    uart.initialise();
    DEVICE.call_once(|| (registers, serial.kind));
    CONSOLE.lock().uart = Some(uart);
    machine::set_panic_writer(write_panic);
}

/// Enables the serial line's interrupts.
pub fn use_interrupts(serial: &Serial) {
    let Some(interrupt) = serial.device.interrupt else { return };
    if crate::register_interrupt(interrupt, serve, 0).is_ok() {
        let mut console = CONSOLE.lock();
        if let Some(uart) = &mut console.uart {
            uart.enable_interrupts();
            console.output = Output::Interrupts;
        }
    }
}

fn serve(_: usize) -> bool {
    serve_console();
    // The wire is nobody else's, so that nobody else can have asked.
    true
}

/// Moves bytes between the rings and the device, and reports input and awaited room: the handler of the serial line's
/// interrupt. For kernels that give that interrupt a handler of their own.
pub fn serve_console() {
    let (is_news, breaks) = {
        let mut console = CONSOLE.lock();
        let Some(uart) = &mut console.uart else { return };
        let uart::Events { received, breaks, .. } = uart.interrupt();
        let waiting = uart.waiting();
        (console.awaited.take_if(|level| waiting <= *level).is_some() || received > 0, breaks)
    };
    if breaks > 0
        && let Some(listener) = BREAK_LISTENER.get()
    {
        listener();
    }
    // Not under the lock: the listener may read at once.
    if is_news && let Some(listener) = LISTENER.get() {
        listener();
    }
}

/// Sets the function that is called when bytes were typed, or when there is the room that [`console_room`] did not find
/// or the silence that [`console_is_silent`] did not, by the hart that serves the interrupt. It may call
/// [`console_try_read`]. The first one that is set stays.
pub fn set_console_listener(listener: fn()) {
    LISTENER.call_once(|| listener);
}

/// Sets the function that is called when a break came on the line, which is no byte and so never input, by the hart
/// that serves the interrupt. The first one that is set stays.
#[doc(alias = "sysrq")]
pub fn set_break_listener(listener: fn()) {
    BREAK_LISTENER.call_once(|| listener);
}

/// Writes all bytes. Works at any time, on any hart.
#[doc(alias = "printk")]
pub fn console_write(bytes: &[u8]) {
    let mut console = CONSOLE.lock();
    if REPORTING.load(Ordering::Relaxed) {
        drop(console);
        loop {
            Machine::wait_for_interrupt();
        }
    }
    let output = console.output;
    let Some(uart) = &mut console.uart else { return machine::early_write(bytes) };
    match output {
        Output::Polled => uart.write_polled(bytes),
        Output::Interrupts => {
            let mut rest = bytes;
            while !rest.is_empty() {
                rest = &rest[uart.write(rest)..];
                if !rest.is_empty() {
                    uart.write_polled(&[]);
                }
            }
        }
    }
}

/// Writes all bytes, or none if that would leave less than half of the ring to others: `false` then. Never waits for
/// the device, for callers that must not hold others up.
pub fn console_try_write(bytes: &[u8]) -> bool {
    let mut console = CONSOLE.lock();
    if REPORTING.load(Ordering::Relaxed) {
        return false;
    }
    match (console.output, &mut console.uart) {
        (Output::Interrupts, Some(uart)) => {
            if uart.waiting() + bytes.len() > uart.capacity() / 2 {
                return false;
            }
            uart.write(bytes) == bytes.len()
        }
        _ => {
            drop(console);
            console_write(bytes);
            true
        }
    }
}

/// Returns how many of `wanted` bytes of a program's output can be written now so that three quarters of the ring stay
/// free for others. If these are not all, the listener is called when an eighth of the ring or less is in use.
///
/// Never waits for the device. Without interrupts of the serial line there is always room, since the writer polls.
pub fn console_room(wanted: usize) -> usize {
    let mut console = CONSOLE.lock();
    let (Output::Interrupts, Some(uart)) = (console.output, &console.uart) else { return wanted };
    let (capacity, waiting) = (uart.capacity(), uart.waiting());
    let room = (capacity / 4).saturating_sub(waiting).min(wanted);
    if room < wanted {
        console.await_level(capacity / 8);
    }
    room
}

/// Returns whether everything written so far has reached the device. If not, the listener is called when it has. Never
/// waits for the device.
pub fn console_is_silent() -> bool {
    let mut console = CONSOLE.lock();
    let is_silent = console.uart.as_ref().is_none_or(|uart| uart.waiting() == 0);
    if !is_silent {
        console.await_level(0);
    }
    is_silent
}

/// Waits until everything written so far has reached the device: for the end of the machine.
pub fn console_flush() {
    if let Some(uart) = &mut CONSOLE.lock().uart {
        uart.write_polled(&[]);
    }
}

/// Returns the number of bytes that wait for the device.
pub fn console_waiting() -> usize {
    CONSOLE.lock().uart.as_ref().map_or(0, |uart| uart.waiting())
}

/// Takes typed bytes, without waiting; returns their number.
pub fn console_try_read(buffer: &mut [u8]) -> usize {
    CONSOLE.lock().uart.as_mut().map_or(0, |uart| uart.read(buffer))
}

/// Writes the text of a panic, regardless of locks held by this or other harts.
///
/// A report is many pieces, and must be out soon: once the lock could not be had, no further attempt is made.
fn write_panic(bytes: &[u8]) {
    static HELD: AtomicBool = AtomicBool::new(false);
    REPORTING.store(true, Ordering::Relaxed);
    let attempts = if HELD.load(Ordering::Relaxed) { 0 } else { PANIC_ATTEMPTS };
    for _ in 0..attempts {
        if let Some(mut console) = CONSOLE.try_lock() {
            if let Some(uart) = &mut console.uart {
                return uart.write_polled(bytes);
            }
            break;
        }
        core::hint::spin_loop();
    }
    HELD.store(true, Ordering::Relaxed);
    match DEVICE.get() {
        Some((registers, kind)) => uart::write_polled(*registers, *kind, bytes),
        None => machine::early_write(bytes),
    }
}

/// Formats to the console, in pieces of whole lines as far as they fit, so that harts do not write into each other's
/// lines.
#[doc(hidden)]
pub fn print(arguments: fmt::Arguments) {
    let mut line = Line { bytes: Vec::new() };
    let _ = line.write_fmt(arguments);
    line.flush();
}

struct Line {
    bytes: Vec<u8, 256>,
}

impl Line {
    fn flush(&mut self) {
        if !self.bytes.is_empty() {
            console_write(&self.bytes);
            self.bytes.clear();
        }
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes() {
            if self.bytes.push(byte).is_err() {
                self.flush();
                let _ = self.bytes.push(byte);
            }
        }
        Ok(())
    }
}

/// Writes formatted text to the console.
#[macro_export]
macro_rules! print {
    ($($argument:tt)*) => { $crate::print(::core::format_args!($($argument)*)) };
}

/// Writes formatted text and the end of the line to the console.
#[macro_export]
macro_rules! println {
    () => { $crate::print(::core::format_args!("\n")) };
    ($($argument:tt)*) => { $crate::print(::core::format_args!("{}\n", ::core::format_args!($($argument)*))) };
}
