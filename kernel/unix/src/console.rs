//! The console as a file: typed bytes for whoever reads first, and output that never waits.

use core::task::{Poll, Waker};

use abi_unix::Errno;
use spin::Mutex;
use waiters::Waiters;

use crate::process::Process;
use crate::user::UserBuffer;

/// Bytes that are moved at once between a program and the serial line.
const PIECE: usize = 256;

/// Who waits for something to be typed.
static READERS: Mutex<Waiters> = Mutex::new(Waiters::new());

/// Learns of input from now on.
pub fn start() {
    platform::set_console_listener(|| READERS.lock().wake_all());
}

/// One step of reading: what was typed, up to the buffer's length. Pending means that nothing was; `waker` is then
/// registered if there is one.
pub fn read(process: &Process, buffer: UserBuffer, waker: Option<&Waker>) -> Poll<Result<usize, Errno>> {
    if buffer.is_empty() {
        return Poll::Ready(Ok(0));
    }
    let mut bytes = [0; PIECE];
    let wanted = buffer.len().min(bytes.len());
    let count = {
        // Looked at under the lock of the list: what is typed later finds the waker in it.
        let mut readers = READERS.lock();
        let count = platform::console_try_read(&mut bytes[..wanted]);
        if let (0, Some(waker)) = (count, waker) {
            readers.register(waker).map_err(|_| Errno::ENOMEM)?;
        }
        count
    };
    if count == 0 {
        return Poll::Pending;
    }
    Poll::Ready(process.copy_out(buffer.address(), &bytes[..count]).map(|()| count))
}

/// Takes back a registration of [`read`].
pub fn forget(waker: &Waker) {
    READERS.lock().forget(waker);
}

/// Writes a buffer from `*done` bytes on, advancing it.
pub fn write(process: &Process, buffer: UserBuffer, done: &mut usize) -> Result<usize, Errno> {
    let mut bytes = [0; PIECE];
    while *done < buffer.len() {
        let count = bytes.len().min(buffer.len() - *done);
        if let Err(error) = process.copy_in(buffer.address() + *done, &mut bytes[..count]) {
            return if *done == 0 { Err(error) } else { Ok(*done) };
        }
        platform::console_write(&bytes[..count]);
        *done += count;
    }
    Ok(*done)
}
