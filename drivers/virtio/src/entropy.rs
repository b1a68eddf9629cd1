//! The entropy device (virtio 1.2 section 5.4): a source of random bytes from the host.

use drivers::Registers;

use crate::queue::{self, Direction, Notify, Queue};
use crate::transport::{Interrupt, Kind, Release, Transport, feature};
use crate::{Error, Memory};

const SIZE: u16 = 2;
/// Number of bytes requested at once: a seed, not a stream.
const REQUEST: usize = 64;

/// A source of random bytes. One request is always under way; the bytes of each are given out once. The device is
/// stopped when its driver is dropped, so that an owner that needs only a seed gets everything back.
pub struct Entropy<R: Registers, M: Memory> {
    transport: Transport<R>,
    queue: Queue<M>,
    memory: M,
    failure: Option<Error>,
}

impl<R: Registers, M: Memory> Entropy<R, M> {
    /// Starts the device and the first request. `allocate` returns at least that many bytes of zeros.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it is not an entropy device, [`Error::OutOfMemory`].
    pub fn new(mut transport: Transport<R>, mut allocate: impl FnMut(usize) -> Option<M>) -> Result<Self, Error> {
        if transport.kind() != Kind::Entropy {
            return Err(Error::Unsupported);
        }
        let (mut queue, memory) = transport.start(feature::EVENT_INDEX, 0, |transport, agreed| {
            let memory = allocate(REQUEST).ok_or(Error::OutOfMemory)?;
            let queue = allocate(queue::bytes(SIZE)).ok_or(Error::OutOfMemory)?;
            let queue = Queue::new(transport, 0, SIZE, queue, agreed & feature::EVENT_INDEX != 0)?;
            Ok((queue, memory))
        })?;
        queue.describe(0, memory.physical_address(), REQUEST as u32, Direction::FromDevice);
        queue.offer(0);
        transport.finish();
        queue.arm();
        if queue.publish() == Notify::Needed {
            transport.notify(0);
        }
        Ok(Entropy { transport, queue, memory, failure: None })
    }

    /// Copies random bytes to the start of `into` and returns their number; 0 means that the device has not answered
    /// yet and will interrupt when it has.
    ///
    /// # Errors
    /// [`Error::Misbehaved`].
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize, Error> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        loop {
            match self.queue.take() {
                Ok(Some(used)) => {
                    let length = (used.length as usize).min(into.len());
                    if let Some(into) = into.get_mut(..length) {
                        self.memory.read(0, into);
                    }
                    // The bytes are given out once; the device replaces them.
                    self.memory.write(0, &[0; REQUEST]);
                    self.queue.offer(used.buffer);
                    if self.queue.publish() == Notify::Needed {
                        self.transport.notify(0);
                    }
                    return Ok(length);
                }
                Ok(None) => {
                    if !self.queue.arm() {
                        return Ok(0);
                    }
                }
                Err(error) => {
                    self.failure = Some(error);
                    let release = self.transport.stop();
                    self.release(release);
                    return Err(error);
                }
            }
        }
    }

    /// Acknowledges the device's interrupt. Do this before reading; see
    /// [`Acknowledger`](crate::transport::Acknowledger).
    pub fn acknowledge_interrupt(&self) -> Interrupt {
        self.transport.acknowledge()
    }

    fn release(&mut self, release: Release) {
        if release == Release::Never {
            self.queue.abandon();
            self.memory.abandon();
        }
    }
}

impl<R: Registers, M: Memory> Drop for Entropy<R, M> {
    fn drop(&mut self) {
        let release = self.transport.end();
        self.release(release);
    }
}
