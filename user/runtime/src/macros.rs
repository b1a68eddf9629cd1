//! System calls in two forms: `read!(descriptor, buffer)` is synchronous; with one more argument, the cid of the
//! coroutine that waits, the same call is asynchronous. (The notation of the papers.)
//!
//! The synchronous form takes a slice, blocks the worker until the call is done, and gives a `Result`. The asynchronous
//! form contains the `await`: `let (result, buffer) = read!(file, buffer, current());` takes a buffer that the call can
//! own and gives it back.

use abi_unix::SystemCall;
use abi_unix::types::{LONGEST_ADDRESS, bytes_of_address};
pub use runtime_macros::by_reference;

use crate::buffer::{Buffer, BufferMut};
use crate::call::Operation;

/// The result of [`main`](crate::main) in a program without the standard library: the function that the start-up code
/// calls.
#[cfg(not(feature = "std"))]
#[doc(hidden)]
#[macro_export]
macro_rules! main_function {
    ($workers:expr, $priority:expr, $name:ident, $($function:tt)*) => {
        $($function)*

        // SAFETY: this is the symbol's only definition in a program, with the signature that the start-up code
        // declares.
        #[unsafe(no_mangle)]
        extern "C" fn cops_entry() -> i32 {
            $crate::start::run($workers, $priority, $name())
        }
    };
}

/// The result of [`main`](crate::main) in a program with the standard library: a `main` as usual.
#[cfg(feature = "std")]
#[doc(hidden)]
#[macro_export]
macro_rules! main_function {
    ($workers:expr, $priority:expr, $name:ident, $($function:tt)*) => {
        fn main() {
            $($function)*

            $crate::start::run($workers, $priority, $name())
        }
    };
}

/// Reads: `read!(descriptor, slice)` or `read!(descriptor, buffer, cid)`.
#[macro_export]
macro_rules! read {
    ($descriptor:expr, $buffer:expr) => {
        $crate::system::file::read($descriptor, $buffer)
    };
    ($descriptor:expr, $buffer:expr, $cid:expr) => {
        $crate::io::read($descriptor, $buffer).with_waiter($crate::Waiter::from($cid).0).await
    };
}

/// Writes: `write!(descriptor, slice)` or `write!(descriptor, buffer, cid)`. Use it as `cops::write!`, because the
/// standard formatting macro has the same name.
#[macro_export]
macro_rules! write {
    ($descriptor:expr, $buffer:expr) => {
        $crate::system::file::write($descriptor, $buffer)
    };
    ($descriptor:expr, $buffer:expr, $cid:expr) => {
        $crate::io::write($descriptor, $buffer).with_waiter($crate::Waiter::from($cid).0).await
    };
}

/// Accepts a connection: `accept!(descriptor)` or `accept!(descriptor, cid)`; gives the new descriptor's number.
#[macro_export]
macro_rules! accept {
    ($descriptor:expr) => {
        $crate::system::network::accept($descriptor).map(|(descriptor, _)| descriptor.into_raw())
    };
    ($descriptor:expr, $cid:expr) => {
        $crate::macros::accept($descriptor)
            .with_waiter($crate::Waiter::from($cid).0)
            .await
            .0
            .map(|number| number as i32)
    };
}

/// Connects: `connect!(descriptor, address)` or `connect!(descriptor, address, cid)` with an
/// [`SocketAddr`](core::net::SocketAddr) or what becomes one.
#[macro_export]
macro_rules! connect {
    ($descriptor:expr, $address:expr) => {
        $crate::system::network::connect($descriptor, $address)
    };
    ($descriptor:expr, $address:expr, $cid:expr) => {
        $crate::macros::connect($descriptor, $address).with_waiter($crate::Waiter::from($cid).0).await.0.map(|_| ())
    };
}

/// Sends on a connected socket: `send!(descriptor, slice)` or `send!(descriptor, buffer, cid)`.
#[macro_export]
macro_rules! send {
    ($descriptor:expr, $buffer:expr) => {
        $crate::system::network::send_to($descriptor, $buffer, 0, None)
    };
    ($descriptor:expr, $buffer:expr, $cid:expr) => {
        $crate::macros::send($descriptor, $buffer).with_waiter($crate::Waiter::from($cid).0).await
    };
}

/// Receives on a connected socket: `recv!(descriptor, slice)` or `recv!(descriptor, buffer, cid)`.
#[macro_export]
macro_rules! recv {
    ($descriptor:expr, $buffer:expr) => {
        $crate::system::network::receive_from($descriptor, $buffer, 0).map(|(count, _)| count)
    };
    ($descriptor:expr, $buffer:expr, $cid:expr) => {
        $crate::macros::receive($descriptor, $buffer).with_waiter($crate::Waiter::from($cid).0).await
    };
}

/// Sleeps: `nanosleep!(ns)` or `nanosleep!(ns, cid)`. Coroutines better use [`crate::sleep`], which needs no call.
#[macro_export]
macro_rules! nanosleep {
    ($ns:expr) => {
        $crate::system::system::sleep($crate::system::abi::types::TimeSpec::from_ns($ns))
    };
    ($ns:expr, $cid:expr) => {
        $crate::macros::nanosleep($ns).with_waiter($crate::Waiter::from($cid).0).await.0.map(|_| ())
    };
}

/// Waits for a child: `wait!(process)` or `wait!(process, cid)`; gives its exit status.
#[macro_export]
macro_rules! wait {
    ($process:expr) => {
        $crate::system::process::wait($crate::system::process::Child::Process($process), 0)
            .map(|ended| ended.map(|(_, ending)| ending))
    };
    ($process:expr, $cid:expr) => {{
        let (result, status) = $crate::macros::wait($process).with_waiter($crate::Waiter::from($cid).0).await;
        result.map(|_| Some($crate::system::process::Ending::from_status(*status)))
    }};
}

/// Starts an asynchronous `accept`, without the peer's address.
pub fn accept(descriptor: i32) -> Operation<(), 3> {
    // SAFETY: without an address nothing is written.
    unsafe { Operation::new(SystemCall::Accept, [descriptor as usize, 0, 0], ()) }
        .or_discard(|number| drop(unix::Descriptor::from_result(number)))
}

/// Starts an asynchronous `connect`.
pub fn connect(
    descriptor: i32,
    address: impl Into<core::net::SocketAddr>,
) -> Operation<alloc::boxed::Box<[u8; LONGEST_ADDRESS]>, 3> {
    let (bytes, length) = bytes_of_address(address.into());
    let bytes = alloc::boxed::Box::new(bytes);
    // SAFETY: the kernel reads the box only.
    unsafe { Operation::new(SystemCall::Connect, [descriptor as usize, bytes.as_ptr() as usize, length], bytes) }
}

/// Starts an asynchronous `sendto` without an address.
pub fn send<B: Buffer>(descriptor: i32, buffer: B) -> Operation<B, 6> {
    let arguments = [descriptor as usize, buffer.pointer() as usize, buffer.length(), 0, 0, 0];
    // SAFETY: the kernel reads the buffer only.
    unsafe { Operation::new(SystemCall::SendTo, arguments, buffer) }
}

/// Starts an asynchronous `recvfrom` without an address.
pub fn receive<B: BufferMut>(descriptor: i32, mut buffer: B) -> Operation<B, 6> {
    let arguments = [descriptor as usize, buffer.pointer_mut() as usize, buffer.length(), 0, 0, 0];
    // SAFETY: the kernel writes to the buffer only.
    unsafe { Operation::new(SystemCall::ReceiveFrom, arguments, buffer) }
}

/// Starts an asynchronous `nanosleep`.
pub fn nanosleep(ns: u64) -> Operation<alloc::boxed::Box<[u8; 16]>, 2> {
    let duration = alloc::boxed::Box::new(abi_unix::types::TimeSpec::from_ns(ns).to_bytes());
    // SAFETY: the kernel reads the box only.
    unsafe { Operation::new(SystemCall::Sleep, [duration.as_ptr() as usize, 0], duration) }
}

/// Starts an asynchronous `wait4` for one child.
pub fn wait(process: u32) -> Operation<alloc::boxed::Box<i32>, 4> {
    let mut status = alloc::boxed::Box::new(0);
    // SAFETY: the kernel writes to the box only.
    unsafe { Operation::new(SystemCall::Wait, [process as usize, &raw mut *status as usize, 0, 0], status) }
}
