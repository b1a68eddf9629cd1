//! The console: the machine's serial line, or the firmware's console until the serial line is found.
//!
//! Output goes to the UART's ring and leaves with its interrupts; with a full ring the writer sends by polling, so
//! output is never lost and no other task is needed. A panic may come while the console is locked; its text goes to the
//! device directly then. From its first word on no other hart writes any more: a hart that tries waits for the end of
//! the machine, which is near.
//!
//! Input waits in a ring until it is read. The wait queue is the kernel's: any number of tasks may wait, and a list of
//! any length needs a heap, which is made later than the console. The kernel is notified of typed bytes.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

use drivers::uart::{self, Uart};
use hal_api::Machine as _;
use heapless::Vec;
use spin::{Mutex, Once};

use crate::description::Serial;
use crate::registers::Mapped;
use crate::{Machine, machine};

/// Number of attempts of a panic to get the lock.
const PANIC_ATTEMPTS: usize = 1 << 16;

static CONSOLE: Mutex<Console> = Mutex::new(Console { uart: None, output: Output::Polled });
/// Registers of the device, for panics.
static DEVICE: Once<(Mapped, u32)> = Once::new();
/// Whether a hart reports the kernel's end.
static REPORTING: AtomicBool = AtomicBool::new(false);
/// Function to call on input.
static LISTENER: Once<fn()> = Once::new();

struct Console {
    uart: Option<Uart<Mapped>>,
    output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Output {
    Polled,
    Interrupts,
}

/// Takes over the serial line.
pub fn start(serial: &Serial) {
    let Some(registers) = Mapped::new((serial.device.address, serial.device.length)) else { return };
    let mut uart = Uart::new(registers, serial.shift);
    uart.initialise();
    DEVICE.call_once(|| (registers, serial.shift));
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

fn serve(_: usize) {
    serve_console();
}

/// Moves bytes between the rings and the device, and reports input: the handler of the serial line's interrupt. For
/// kernels that give that interrupt a handler of their own.
pub fn serve_console() {
    let received = CONSOLE.lock().uart.as_mut().map_or(0, |uart| uart.interrupt().received);
    // Not under the lock: the listener may read at once.
    if received > 0
        && let Some(listener) = LISTENER.get()
    {
        listener();
    }
}

/// Sets the function that is called when bytes were typed, by the hart that serves the interrupt. It may call
/// [`console_try_read`]. The first one that is set stays.
pub fn set_console_listener(listener: fn()) {
    LISTENER.call_once(|| listener);
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

/// Waits until everything written so far has reached the device.
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
        Some((registers, shift)) => uart::write_polled(registers, *shift, bytes),
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
