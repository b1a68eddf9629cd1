//! Folders of the host: devices that carry messages of 9P (virtio-9p), each with one message under way at a time.
//!
//! A volume of such a folder is mounted as one of a disk (`mount -t 9p NAME DIRECTORY`), and its coroutine waits for
//! answers on its own stack. The one named `host` is mounted at `/host` when the machine starts. A device that does not
//! answer for long is given up, and everything that is asked of it fails from then on (`EIO`).

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::task::{Poll, Waker};

use abi_unix::Errno;
use hal_api::Machine as _;
use platform::{Machine, Mapped, Platform, println};
use spin::{Mutex, Once};
use virtio::{Acknowledger, Folder, Kind, RequestError};

use crate::machine::virtio::{InterruptLine, VirtioDevice, devices};
use crate::network::wire::DmaBuffer;
use crate::time;

#[cfg(test)]
pub(in crate::files) mod fake;

/// Number of folders that are driven.
const MOST_FOLDERS: usize = 8;
/// Time without an answer after which a device is given up.
const PATIENCE_NS: u64 = 30_000_000_000;
/// The name of the folder that is mounted when the machine starts, and the directory.
pub(crate) const NAME_AT_START: &[u8] = b"host";
pub(crate) const PLACE_AT_START: &str = "/host";

/// The device of a folder.
trait Device: Send {
    /// Begins to send a message.
    fn send(&mut self, message: &[u8]) -> Result<(), RequestError>;

    /// Copies the answer to the start of `into` and returns its length; `None` if it has not come.
    fn take(&mut self, into: &mut [u8]) -> Option<Result<usize, RequestError>>;

    /// Gives the device up, which does not answer.
    fn give_up(&mut self);
}

impl Device for Folder<Mapped, DmaBuffer> {
    fn send(&mut self, message: &[u8]) -> Result<(), RequestError> {
        Folder::send(self, message)
    }

    fn take(&mut self, into: &mut [u8]) -> Option<Result<usize, RequestError>> {
        Folder::take(self, into)
    }

    fn give_up(&mut self) {
        Folder::give_up(self);
    }
}

/// A folder of the host.
pub(crate) struct HostFolder {
    name: Vec<u8>,
    /// That of a device of virtio.
    acknowledger: Option<Acknowledger<Mapped>>,
    device: Mutex<Box<dyn Device>>,
    /// The task that waits for the answer.
    waiter: Mutex<Option<Waker>>,
    reservation: time::Reservation,
}

static FOLDERS: Once<Vec<HostFolder>> = Once::new();

/// Finds the folders of the host and starts their devices.
pub(crate) fn start(platform: &'static Platform) {
    let (mut folders, mut lines) = (Vec::new(), Vec::new());
    for VirtioDevice { transport, line, place } in devices(platform, Kind::Folder).into_iter().take(MOST_FOLDERS) {
        if matches!(line, InterruptLine::None) {
            println!("folder: {place} has no interrupt");
            continue;
        }
        let acknowledger = transport.acknowledger();
        match (Folder::new(transport, DmaBuffer::allocate), time::Reservation::new()) {
            (Ok(device), Ok(reservation)) => {
                let name = device.name();
                println!("folder: {}, of the host", name.escape_ascii());
                folders.push(HostFolder::new(name, Some(acknowledger), Box::new(device), reservation));
                lines.push(line);
            }
            (Err(error), _) => println!("folder: {place} cannot be used: {error}"),
            (_, Err(error)) => println!("folder: {place} cannot be used: {error}"),
        }
    }
    #[cfg(test)]
    folders.push(fake::folder());
    let folders = FOLDERS.call_once(|| folders);
    for (number, (folder, line)) in folders.iter().zip(lines).enumerate() {
        if line.register(serve, number).is_err() {
            println!("folder: {} has no interrupt, and is given up", folder.name.escape_ascii());
            folder.device.lock().give_up();
        }
    }
}

fn serve(number: usize) -> bool {
    let Some(folder) = FOLDERS.get().and_then(|folders| folders.get(number)) else { return false };
    let has_asked = folder.acknowledger.as_ref().is_some_and(|device| device.acknowledge().is_some());
    let waiter = folder.waiter.lock().take();
    if let Some(waiter) = waiter {
        waiter.wake();
    }
    has_asked
}

/// Returns the folder of this name.
pub(crate) fn find(name: &[u8]) -> Option<&'static HostFolder> {
    FOLDERS.get()?.iter().find(|folder| folder.name == name)
}

impl HostFolder {
    fn new(
        name: Vec<u8>,
        acknowledger: Option<Acknowledger<Mapped>>,
        device: Box<dyn Device>,
        reservation: time::Reservation,
    ) -> HostFolder {
        let (device, waiter) = (Mutex::new(device), Mutex::new(None));
        HostFolder { name, acknowledger, device, waiter, reservation }
    }

    /// Returns the name.
    pub(crate) fn name(&self) -> &str {
        core::str::from_utf8(&self.name).unwrap_or("a folder")
    }

    /// Begins to send a message. `EIO` if the device was given up.
    pub(crate) fn begin(&'static self, message: &[u8]) -> Result<Exchange, Errno> {
        self.device.lock().send(message).map_err(|_| Errno::EIO)?;
        Ok(Exchange { folder: self, deadline: Machine::now() + time::ticks_at_ns(PATIENCE_NS), alarm: None })
    }
}

/// A message that was sent, whose answer has not come.
pub(crate) struct Exchange {
    folder: &'static HostFolder,
    deadline: u64,
    alarm: Option<time::Alarm>,
}

impl Exchange {
    /// Copies the answer to the start of `into` and returns its length, when it is there. `EIO` if it will not come.
    pub(crate) fn poll(&mut self, into: &mut [u8], waker: &Waker) -> Poll<Result<usize, Errno>> {
        // Before the look, after which it may come at any moment.
        *self.folder.waiter.lock() = Some(waker.clone());
        let mut device = self.folder.device.lock();
        if let Some(taken) = device.take(into) {
            return Poll::Ready(taken.map_err(|_| Errno::EIO));
        }
        if Machine::now() >= self.deadline {
            println!("folder: {} does not answer, and is given up", self.folder.name());
            device.give_up();
            return Poll::Ready(Err(Errno::EIO));
        }
        drop(device);
        if self.alarm.is_none() {
            self.alarm = Some(self.folder.reservation.set(self.deadline, waker));
        }
        Poll::Pending
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if let Some(alarm) = self.alarm.take() {
            time::clear(alarm);
        }
        self.folder.waiter.lock().take();
    }
}
