//! Processes behind descriptors (pidfd_open(2)).
//!
//! A descriptor means one process for ever, however often its number is used again. It can be watched for the end of
//! the process, which needs no relation to it; everything that acts on the process asks for the same authority as the
//! calls by its number.

use alloc::sync::Arc;
use core::task::Waker;

use abi_unix::Errno;
use abi_unix::types::Status;
use filesystem::Access;

use crate::files::file::{self, FileOperations, OpenFile, status_of_anonymous};
use crate::process::accounts::{Account, Resource};
use crate::process::lifetime::Lifetime;
use crate::process::user::Caller;
use crate::process::{Process, table};

/// Bytes of a lifetime, which the first descriptor of a process pays for, as far as one knows: it is charged to each.
const MEMORY_OF_A_LIFETIME: usize = 64;

const _: () = assert!(size_of::<Lifetime>() + 2 * size_of::<usize>() <= MEMORY_OF_A_LIFETIME);

/// The object of `pidfd_open`.
#[doc(alias = "pidfd")]
pub(crate) struct ProcessFile {
    id: u32,
    /// All that it keeps of the process, whose memory would stay also with a weak reference.
    lifetime: Arc<Lifetime>,
}

impl ProcessFile {
    fn open(self, account: &Arc<Account>, is_non_blocking: bool) -> Result<Arc<OpenFile>, Errno> {
        let mut charge = file::charge(account)?;
        charge.merge(account.charge(Resource::Memory, MEMORY_OF_A_LIFETIME)?);
        Ok(Arc::new(OpenFile::new(self, Access::ReadWrite, is_non_blocking, charge)))
    }

    /// Opens the process with this number, or its zombie, for a process with this account. `ESRCH` if there is none.
    pub(crate) fn of(id: u32, account: &Arc<Account>, is_non_blocking: bool) -> Result<Arc<OpenFile>, Errno> {
        let lifetime = table::lifetime_of(id).ok_or(Errno::ESRCH)?;
        ProcessFile { id, lifetime }.open(account, is_non_blocking)
    }

    /// Opens a process that does not run yet.
    pub(crate) fn of_a_child(child: &Process, account: &Arc<Account>) -> Result<Arc<OpenFile>, Errno> {
        ProcessFile { id: child.id, lifetime: child.lifetime().clone() }.open(account, false)
    }

    /// Returns the number of the process, which no other has yet. `ESRCH` if nothing is left of it.
    pub(crate) fn number(&self) -> Result<u32, Errno> {
        if self.lifetime.is_forgotten() { Err(Errno::ESRCH) } else { Ok(self.id) }
    }

    /// Returns the process; `None` for a zombie. `ESRCH` if nothing is left of it.
    pub(crate) fn process(&self) -> Result<Option<Arc<Process>>, Errno> {
        let process = table::find(self.number()?);
        // The number may have become another's since.
        let is_meant = |process: &Arc<Process>| Arc::ptr_eq(process.lifetime(), &self.lifetime);
        let process = process.filter(|process| is_meant(process) && !process.has_ended());
        self.number().map(|_| process)
    }
}

impl FileOperations for ProcessFile {
    fn status(&self) -> Status {
        status_of_anonymous()
    }

    fn readiness(&self, _: &dyn Caller, _: u32, waker: Option<&Waker>) -> Result<u32, Errno> {
        self.lifetime.readiness(waker)
    }

    fn forget_reader(&self, waker: &Waker) {
        self.lifetime.forget(waker);
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::authority::{Capability, CapabilitySet, Held};
    use abi_unix::types::{AT_FDCWD, clone, epoll as event, open, signal, wait_kind};

    use super::*;
    use crate::process::authority;
    use crate::testing::{Program, run};

    fn open_process(program: &mut Program, id: usize, flags: u32) -> Result<usize, Errno> {
        program.call(SystemCall::ProcessFile, [id, flags as usize])
    }

    fn send(program: &mut Program, file: usize, signal: u32) -> Result<usize, Errno> {
        program.call(SystemCall::SignalProcessFile, [file, signal as usize, 0, 0])
    }

    /// Returns the events of a descriptor, which is asked for input, at once.
    fn events(program: &mut Program, file: usize) -> u32 {
        let list = program.store(&[(file as u32).to_le_bytes(), event::IN.to_le_bytes()].concat());
        let now = program.store(&[0; 16]);
        program.call(SystemCall::Poll, [list, 1, now, 0, 0]).unwrap();
        program.read_u32(list + 4) >> 16
    }

    fn wait(program: &mut Program, file: usize, options: u32) -> Result<usize, Errno> {
        program.call(SystemCall::WaitIdentified, [wait_kind::DESCRIPTOR as usize, file, 0, options as usize, 0])
    }

    const EXITED: u32 = abi_unix::types::WEXITED;

    #[test]
    fn nonsense_is_refused() {
        run(|program| {
            let own = program.id as usize;
            for (id, flags, error) in [
                (0, 0, Errno::EINVAL),
                (usize::MAX, 0, Errno::EINVAL),
                (own, 1, Errno::EINVAL),
                (9999, 0, Errno::ESRCH),
                (1 << 20, 0, Errno::ESRCH),
            ] {
                assert_eq!(open_process(program, id, flags), Err(error), "{id} {flags}");
            }
            let file = open_process(program, own, 0).unwrap();
            assert_eq!(program.call(SystemCall::FileControl, [file, 1, 0]), Ok(1), "it is closed by execve");
            assert_eq!(program.read_from(file, 8), Err(Errno::EINVAL));
            assert_eq!(program.write_to(file, &[0; 8]), Err(Errno::EINVAL));
            assert_eq!(events(program, file), 0);
            let (reader, _) = program.pipe(0);
            assert_eq!(send(program, reader, 0), Err(Errno::EBADF));
            assert_eq!(send(program, 99, 0), Err(Errno::EBADF));
            assert_eq!(send(program, file, 65), Err(Errno::EINVAL));
            assert_eq!(send(program, file, 0), Ok(0));
            assert_eq!(program.call(SystemCall::SignalProcessFile, [file, 0, 0, 1]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::SignalProcessFile, [file, 10, 0x1000, 0]), Err(Errno::EFAULT));
            let information = program.store(&[0; 128]);
            let other_signal = program.call(SystemCall::SignalProcessFile, [file, 10, information, 0]);
            assert_eq!(other_signal, Err(Errno::EINVAL));
            assert_eq!(wait(program, file, EXITED), Err(Errno::ECHILD), "it is no child");
            assert_eq!(wait(program, reader, EXITED), Err(Errno::EBADF));
        });
    }

    /// A child is watched, signalled and waited for, and its descriptor means no other process after that.
    #[test]
    fn a_descriptor_means_its_process_for_ever() {
        run(|program| {
            let child = program.spawn(|program| program.sleep_ns(1_000_000_000_000)).unwrap();
            let file = open_process(program, child, open::NONBLOCK).unwrap();
            assert_eq!((events(program, file), send(program, file, 0)), (0, Ok(0)));
            assert_eq!(wait(program, file, EXITED), Err(Errno::EAGAIN), "it does not wait");
            assert_eq!(wait(program, file, EXITED | abi_unix::types::WNOHANG), Ok(0));
            let list = program.store(&[(file as u32).to_le_bytes(), event::IN.to_le_bytes()].concat());
            assert_eq!(program.submit(SystemCall::Poll, [list, 1, 0, 0, 0], 3), None);
            program.sleep_ns(1_000_000);
            assert_eq!(program.completions(), []);
            assert_eq!(send(program, file, signal::KILL), Ok(0));
            assert_eq!(program.await_completions(), [(3, Ok(1))]);
            let ended = event::IN;
            assert_eq!((events(program, file) & !event::RDNORM, send(program, file, 0)), (ended, Ok(0)));
            // A second one, of the zombie.
            let second = open_process(program, child, 0).unwrap();
            assert_eq!(events(program, second) & !event::RDNORM, ended);
            assert_eq!(wait(program, second, EXITED), Ok(0));
            for file in [file, second] {
                assert_eq!(events(program, file) & !event::RDNORM, ended | event::HUP);
                assert_eq!(send(program, file, 0), Err(Errno::ESRCH));
                assert_eq!(wait(program, file, EXITED), Err(Errno::ECHILD));
            }
            assert_eq!(open_process(program, child, 0), Err(Errno::ESRCH));
        });
    }

    /// The directory of a process in `/proc` takes its place for signals, and no other file there does.
    #[test]
    fn a_process_is_signalled_by_its_directory() {
        run(|program| {
            let child = program.spawn(|program| program.sleep_ns(1_000_000_000_000)).unwrap();
            let open = |program: &mut Program, name: &str| {
                let path = program.store(format!("/proc/{child}{name}\0").as_bytes());
                program.call(SystemCall::Open, [AT_FDCWD as usize, path, 0, 0]).unwrap()
            };
            let (file, other) = (open(program, ""), open(program, "/task"));
            assert_eq!((send(program, file, 0), send(program, other, 0)), (Ok(0), Err(Errno::EBADF)));
            let above = open(program, "/..");
            assert_eq!(send(program, above, 0), Err(Errno::EBADF));
            assert_eq!(send(program, file, signal::KILL), Ok(0));
            assert_eq!(program.wait_for(child), Ok((child, signal::KILL)));
            assert_eq!(send(program, file, 0), Err(Errno::ESRCH));
        });
    }

    /// `CLONE_PIDFD` gives the parent a descriptor, and the copy none.
    #[test]
    fn a_copy_has_a_descriptor_from_its_beginning() {
        run(|program| {
            let place = program.place(8);
            let flags = (clone::SETTLS | clone::PIDFD) as usize | signal::CHLD as usize;
            let identity = program.identity_for(move |program| {
                assert_eq!(open_process(program, program.id as usize, 0), Ok(3), "there is no other");
                program.sleep_ns(1_000_000);
            });
            let with_number = flags | clone::PARENT_SETTID as usize;
            assert_eq!(program.call(SystemCall::Clone, [with_number, 0, place, identity, 0]), Err(Errno::EINVAL));
            let detached = flags | clone::DETACHED as usize;
            assert_eq!(program.call(SystemCall::Clone, [detached, 0, place, identity, 0]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::Clone, [flags, 0, 0x1000, identity, 0]), Err(Errno::EFAULT));
            let child = program.call(SystemCall::Clone, [flags, 0, place, identity, 0]).unwrap();
            let file = program.read_u32(place) as usize;
            assert_eq!(file, 3, "failures leave none");
            assert_eq!(program.call(SystemCall::FileControl, [file, 1, 0]), Ok(1));
            assert_eq!(wait(program, file, EXITED), Ok(0));
            assert_eq!(program.call(SystemCall::Wait, [child, 0, 0, 0]), Err(Errno::ECHILD));
        });
    }

    /// A descriptor keeps nothing of a process that has ended but its lifetime, and one of a process that never ran
    /// means no later one.
    #[test]
    fn a_descriptor_keeps_no_process() {
        run(|program| {
            let child = program.spawn(|program| program.sleep_ns(1_000_000)).unwrap();
            let file = open_process(program, child, 0).unwrap();
            let process = Arc::downgrade(&table::find(child as u32).unwrap());
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            program.sleep_ns(1_000_000);
            assert_eq!((process.strong_count(), process.weak_count()), (0, 0));
            assert_eq!(send(program, file, 0), Err(Errno::ESRCH));

            let account = program.process().account.clone();
            let place = program.place(8);
            let flags = (clone::SETTLS | clone::PIDFD) as usize | signal::CHLD as usize;
            let identity = program.identity_for(|program| program.sleep_ns(1_000_000));
            let child = program.call(SystemCall::Clone, [flags, 0, place, identity, 0]).unwrap();
            let discarded = ProcessFile::of_a_child(&table::find(child as u32).unwrap(), &account).unwrap();
            let discarded = discarded.as_kind::<ProcessFile>().unwrap();
            assert_eq!(discarded.number(), Ok(child as u32));
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert_eq!(discarded.number(), Err(Errno::ESRCH));
        });
    }

    /// A file of another process is taken by those above it: neither by those who may look into it, nor by its copy.
    #[test]
    fn a_file_of_another_process_is_taken() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let child = program.fork(move |program| {
                let second = program.call(SystemCall::Duplicate, [writer]).unwrap();
                program.write_to(second, b"x").unwrap();
                program.sleep_ns(1_000_000_000_000);
            });
            let child = child.unwrap();
            program.close(writer).unwrap();
            assert_eq!(program.read_from(reader, 1), Ok(b"x".to_vec()));
            let file = open_process(program, child, 0).unwrap();
            let get = |program: &mut Program, file: usize, wanted: usize, flags: usize| {
                program.call(SystemCall::TakeFile, [file, wanted, flags])
            };
            assert_eq!(get(program, file, writer, 1), Err(Errno::EINVAL));
            assert_eq!(get(program, file, 99, 0), Err(Errno::EBADF));
            assert_eq!(get(program, reader, writer, 0), Err(Errno::EBADF));
            let taken = get(program, file, writer, 0).unwrap();
            assert_eq!(program.call(SystemCall::FileControl, [taken, 1, 0]), Ok(1));
            assert_eq!(program.write_to(taken, b"y"), Ok(1));
            assert_eq!(program.read_from(reader, 1), Ok(b"y".to_vec()));
            // Not from the first process, which is another user.
            let own = program.id as usize;
            let stranger = program.spawn(move |program| {
                let file = open_process(program, own, 0).unwrap();
                assert_eq!(get(program, file, 0, 0), Err(Errno::EPERM));
                // Observation does not suffice, and what permits to give and take authority does.
                let (first, process) = (table::find(1).unwrap(), program.process());
                for capability in [Capability::Observe, Capability::Kill] {
                    authority::give(&first, &process, Held::of(CapabilitySet::only(capability))).unwrap();
                    assert_eq!(get(program, file, 0, 0), Err(Errno::EPERM), "{capability:?}");
                }
                let all = Held::of(CapabilitySet::only(Capability::SetCapabilities));
                authority::give(&first, &process, all).unwrap();
                assert!(get(program, file, 0, 0).is_ok());
            });
            let stranger = stranger.unwrap();
            assert_eq!(program.wait_for(stranger), Ok((stranger, 0)));
            let copy = program.fork(move |program| {
                let file = open_process(program, own, 0).unwrap();
                assert_eq!(get(program, file, 0, 0), Err(Errno::EPERM));
                let itself = open_process(program, program.id as usize, 0).unwrap();
                assert!(get(program, itself, 0, 0).is_ok());
            });
            let copy = copy.unwrap();
            assert_eq!(program.wait_for(copy), Ok((copy, 0)));
            assert_eq!(send(program, file, signal::KILL), Ok(0));
            assert_eq!(wait(program, file, EXITED), Ok(0));
            assert_eq!(get(program, file, writer, 0), Err(Errno::ESRCH));
        });
    }
}
