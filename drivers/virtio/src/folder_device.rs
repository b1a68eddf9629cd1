//! The device for messages of 9P (device 9 in virtio 1.2 section 5; its layout is that of QEMU and Linux): a folder of
//! the host.

use alloc::vec::Vec;

use drivers::Registers;

use crate::block_device::RequestError;
use crate::queue::{self, Direction, Notify, Queue, Used};
use crate::transport::{Interrupt, Kind, Release, Transport, feature};
use crate::{Error, Memory};

/// One message is under way at a time.
const SIZE: u16 = 2;
/// Bytes of the longest message, and of the longest answer.
pub const LONGEST_MESSAGE: usize = 64 * 1024;
/// Bytes of the memory for the table of descriptors.
const TABLE: usize = 64;
/// The device has a name.
const HAS_NAME: u64 = 1;
/// The longest name that is read.
const LONGEST_NAME: usize = 128;
/// Bytes of an answer that no device goes without.
const LEAST_ANSWER: u32 = 7;

/// A folder of the host, behind a device that takes a message and gives its answer.
pub struct Folder<R: Registers, M: Memory> {
    transport: Transport<R>,
    queue: Queue<M>,
    table: M,
    message: M,
    answer: M,
    is_under_way: bool,
    failure: Option<Error>,
}

impl<R: Registers, M: Memory> Folder<R, M> {
    /// Starts the device. `allocate` returns at least that many bytes of zeros; it is called a few times.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it is not such a device or an unusable one, [`Error::OutOfMemory`].
    pub fn new(mut transport: Transport<R>, mut allocate: impl FnMut(usize) -> Option<M>) -> Result<Self, Error> {
        if transport.kind() != Kind::Folder {
            return Err(Error::Unsupported);
        }
        let wanted = feature::EVENT_INDEX | HAS_NAME;
        let (mut queue, table, message, answer) = transport.start(wanted, feature::INDIRECT, |transport, agreed| {
            let mut memory = |bytes| allocate(bytes).filter(|memory: &M| memory.length() >= bytes);
            let table = memory(TABLE).ok_or(Error::OutOfMemory)?;
            let message = memory(LONGEST_MESSAGE).ok_or(Error::OutOfMemory)?;
            let answer = memory(LONGEST_MESSAGE).ok_or(Error::OutOfMemory)?;
            let queue = memory(queue::bytes(SIZE)).ok_or(Error::OutOfMemory)?;
            let queue = Queue::new(transport, 0, SIZE, queue, agreed & feature::EVENT_INDEX != 0)?;
            Ok((queue, table, message, answer))
        })?;
        queue.describe(0, table.physical_address(), 0, Direction::Table);
        transport.finish();
        queue.arm();
        Ok(Folder { transport, queue, table, message, answer, is_under_way: false, failure: None })
    }

    /// Returns the name that the host has given the folder.
    pub fn name(&self) -> Vec<u8> {
        let length = u16::from_le_bytes([self.transport.configuration(0), self.transport.configuration(1)]);
        (0..usize::from(length).min(LONGEST_NAME)).map(|at| self.transport.configuration(2 + at)).collect()
    }

    /// Returns the reason why the device is no longer used, if it is not.
    pub fn failure(&self) -> Option<Error> {
        self.failure
    }

    /// Begins to send a message.
    ///
    /// # Errors
    /// [`RequestError::Full`] if another one is under way, [`RequestError::Invalid`] if it is empty or too long,
    /// [`RequestError::Gone`].
    pub fn send(&mut self, message: &[u8]) -> Result<(), RequestError> {
        if self.failure.is_some() {
            return Err(RequestError::Gone);
        }
        if self.is_under_way {
            return Err(RequestError::Full);
        }
        if message.is_empty() || message.len() > LONGEST_MESSAGE {
            return Err(RequestError::Invalid);
        }
        self.message.write(0, message);
        let parts = [
            (&self.message, message.len(), Direction::ToDevice.flags() | queue::HAS_NEXT | 1 << 16),
            (&self.answer, LONGEST_MESSAGE, Direction::FromDevice.flags()),
        ];
        for (number, (memory, length, flags)) in parts.into_iter().enumerate() {
            let (at, address) = (16 * number, memory.physical_address());
            let words = [address as u32, (address >> 32) as u32, length as u32, flags];
            words.into_iter().enumerate().for_each(|(place, word)| self.table.store(at + 4 * place, word));
        }
        self.queue.set_length_and_limit(0, 2 * 16, LONGEST_MESSAGE as u32);
        self.queue.offer(0);
        self.is_under_way = true;
        if self.queue.publish() == Notify::Needed {
            self.transport.notify(0);
        }
        Ok(())
    }

    /// Copies the answer to the start of `into` and returns its length; `None` if it has not come, and the device
    /// interrupts then.
    ///
    /// # Errors
    /// [`RequestError::Failed`] if it is longer than the room or none, [`RequestError::Gone`].
    pub fn take(&mut self, into: &mut [u8]) -> Option<Result<usize, RequestError>> {
        loop {
            if self.failure.is_some() {
                return Some(Err(RequestError::Gone));
            }
            match self.queue.take() {
                Ok(Some(Used { length, .. })) => {
                    self.is_under_way = false;
                    let room = into.get_mut(..length as usize).filter(|_| length >= LEAST_ANSWER);
                    return Some(match room {
                        Some(room) => {
                            self.answer.read(0, room);
                            Ok(room.len())
                        }
                        None => Err(RequestError::Failed),
                    });
                }
                Ok(None) => {
                    if !self.queue.arm() {
                        return None;
                    }
                }
                Err(error) => self.fail(error),
            }
        }
    }

    /// Gives a device up that does not answer: it is stopped.
    pub fn give_up(&mut self) {
        self.fail(Error::Misbehaved);
    }

    fn fail(&mut self, error: Error) {
        if self.failure.is_none() {
            self.failure = Some(error);
            let release = self.transport.stop();
            self.release(release);
        }
    }

    fn release(&mut self, release: Release) {
        if release == Release::Never {
            self.queue.abandon();
            [&mut self.table, &mut self.message, &mut self.answer].into_iter().for_each(Memory::abandon);
        }
    }

    /// Acknowledges the device's interrupt. Do this before taking an answer; see
    /// [`Acknowledger`](crate::transport::Acknowledger).
    pub fn acknowledge_interrupt(&self) -> Interrupt {
        self.transport.acknowledge()
    }
}

impl<R: Registers, M: Memory> Drop for Folder<R, M> {
    fn drop(&mut self) {
        let release = self.transport.end();
        self.release(release);
    }
}
