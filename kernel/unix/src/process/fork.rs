//! `fork`: a process that begins as a copy of another one.
//!
//! The copy has the regions of the original, shares its pages until one of the two writes to them
//! ([`share_pages`](memory::AddressSpace::share_pages)), and has its open files, directory, signal actions and limits.
//! It has one worker, with the registers of the one that has called, and nothing of what concerns COPS's own interface:
//! its process page and completion ring are fresh, there are no request rings, receivers of interrupts or calls in
//! flight. A program that uses these goes on with `spawn`.
//!
//! All work goes in steps. Other threads of the original run meanwhile; the copy sees each page at some moment of the
//! call, as on Linux.
//!
//! `vfork` ([`lend`]) copies everything but the memory, which both have together until the child executes a program or
//! ends; the thread that has called waits until then ([`lending`](crate::process::lending)).

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::future::poll_fn;
use core::sync::atomic::Ordering;
use core::task::Poll;

use abi_unix::types::clone as flag;
use abi_unix::types::signal;
use abi_unix::{Errno, SystemCall};
use hal_api::UserContext;
use memory::OutOfMemory;
use memory::space::{Placement, Sharing};
use memory::sv39::Protection;
use usermode::Space;

use crate::files::descriptor::Descriptors;
use crate::process::accounts::{Account, Charge, Resource};
use crate::process::beginnings::Beginning;
use crate::process::exit_status::Ending;
use crate::process::family::ProcessPlace;
use crate::process::lending::{KEPT_OF_A_LENDER, ProcessMemory};
use crate::process::process_file::ProcessFile;
use crate::process::shared::Shared;
use crate::process::user::map_error;
use crate::process::worker::{Attention, Worker};
use crate::process::{self, Origin, Process, switching, table};
use crate::scheduling::{steps, stretch};

/// Flags with which a process may start.
pub(crate) const FLAGS: u64 = flag::SIGNAL
    | flag::VM
    | flag::VFORK
    | flag::PIDFD
    | flag::SETTLS
    | flag::PARENT_SETTID
    | flag::CHILD_SETTID
    | flag::CHILD_CLEARTID
    | flag::CLEAR_SIGHAND
    | flag::SYSVSEM;

/// Words of a `clone` call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    /// Flags of `clone`.
    pub flags: u64,
    /// Address for the child's number in the parent.
    pub parent: usize,
    /// Address for it in the child, and of the word that becomes 0 at the end of its first worker.
    pub child: usize,
    /// Address for a descriptor of the child in the parent.
    pub(crate) descriptor: usize,
}

/// A process that a worker wants to start: its first registers, and words of the call.
pub(crate) struct Copied {
    /// The registers.
    pub context: Box<UserContext>,
    /// The words.
    pub words: Words,
}

/// Starts a copy of a worker's process with these registers; returns its number.
///
/// # Cancellation
/// There is no new process.
#[doc(alias = "kernel_clone")]
pub(crate) async fn fork(parent: Arc<Worker>, context: Box<UserContext>, words: Words) -> Result<usize, Errno> {
    let process = &parent.process;
    table::require_depth(process)?;
    let account = process.account.of_a_child()?;
    let place = ProcessPlace::new(&process.account)?;
    // Before the work: the error path would have to free a whole copy.
    let charge = account.charge(Resource::Memory, process::MEMORY)?;
    let shared = process.shared.of_a_copy()?;
    let beginning = process.beginnings.add(&account)?;
    let begun = match copy(process, &beginning, &shared).await {
        Ok(()) => {
            let memory = ProcessMemory::new(beginning.space.clone(), &account);
            let descriptors = beginning.descriptors.lock().take();
            let parts = CopiedParts { account, charge, place, memory, shared, descriptors };
            begin(&parent, Copied { context, words }, parts).map(|child| child.id as usize)
        }
        Err(error) => Err(error),
    };
    process.beginnings.finish(&beginning, begun).await
}

/// Starts a process in the memory of a worker's process, with these registers, and waits until it has left that memory;
/// returns its number. A worker that has to leave before that ends the process first.
///
/// # Cancellation
/// Not to be dropped: the process would go on in memory that its lender frees.
#[doc(alias = "vfork")]
#[doc(alias = "CLONE_VFORK")]
#[doc(alias = "wait_for_vfork_done")]
pub(crate) async fn lend(parent: Arc<Worker>, copied: Copied) -> Result<usize, Errno> {
    stretch::goes_on_with(SystemCall::Clone);
    let child = start_borrower(&parent, copied).await?;
    poll_fn(|cx| {
        stretch::goes_on_with(SystemCall::Clone);
        if child.address_space.poll_loan_is_over(cx.waker()) {
            return Poll::Ready(());
        }
        // Looked at after the registration: a later stop wakes this coroutine.
        if parent.is_to_stop() {
            child.end(Ending::Killed(signal::KILL as u8));
            // Perhaps a process waits for the memory that both have.
            child.boost();
        }
        Poll::Pending
    })
    .await;
    Ok(child.id as usize)
}

/// Starts a process in the memory of a worker's process.
async fn start_borrower(parent: &Arc<Worker>, copied: Copied) -> Result<Arc<Process>, Errno> {
    let process = &parent.process;
    table::require_depth(process)?;
    let account = process.account.of_a_child()?;
    let place = ProcessPlace::new(&process.account)?;
    let charge = account.charge(Resource::Memory, process::MEMORY + KEPT_OF_A_LENDER)?;
    let shared = process.shared.of_a_copy()?;
    let beginning = process.beginnings.add(&account)?;
    let begun = match copy_files(process, &beginning).await {
        Ok(()) => {
            let memory = ProcessMemory::borrowed(&process.address_space, beginning.space.clone(), &account);
            let descriptors = beginning.descriptors.lock().take();
            begin(parent, copied, CopiedParts { account, charge, place, memory, shared, descriptors })
        }
        Err(error) => Err(error),
    };
    process.beginnings.finish(&beginning, begun).await
}

/// Parts of a process that begins as a copy.
struct CopiedParts {
    account: Arc<Account>,
    charge: Charge,
    place: ProcessPlace,
    memory: ProcessMemory,
    shared: Shared,
    descriptors: Descriptors,
}

/// Gives a process that is being started the open files and the memory of another one.
async fn copy(process: &Process, beginning: &Beginning, shared: &Shared) -> Result<(), Errno> {
    copy_files(process, beginning).await?;
    copy_memory(process, &beginning.space, shared).await
}

/// Gives a process that is being started the open files of another one.
async fn copy_files(process: &Process, beginning: &Beginning) -> Result<(), Errno> {
    let mut next = Some(0);
    while let Some(at) = next {
        next = process.descriptors.lock().copy_part(&mut beginning.descriptors.lock(), at)?;
        pause(process).await?;
    }
    Ok(())
}

/// Makes the process, and lets it run.
fn begin(parent: &Arc<Worker>, copied: Copied, parts: CopiedParts) -> Result<Arc<Process>, Errno> {
    let process = &parent.process;
    let CopiedParts { account, charge, place, memory, shared, descriptors } = parts;
    // The users first: capabilities and permissions that another thread gives up with them are not found any more.
    let identity = process.whom();
    let (standing, authority) = (process.standing.inherited(), process.authority.of_a_copy(&identity));
    let origin = Origin { account, place, standing, authority, identity, dump: process.dump.of_a_copy() };
    let directory = process.directory.lock().clone();
    let (above, group, priority) = (process.id, Some(process.group_and_session()), process.base_priority());
    let child = table::create(|id| {
        // Under the lock of the table: a signal that ends a whole group reaches either the copy or its original.
        if process.has_ended() {
            return Err(Errno::EINTR);
        }
        Ok(Process::new(id, above, group, origin, charge, memory, shared, descriptors, directory, priority))
    })?;
    child.creation_mask.store(process.creation_mask.load(Ordering::Relaxed), Ordering::Relaxed);
    child.no_new_rights.store(process.no_new_rights.load(Ordering::Relaxed), Ordering::Relaxed);
    child.keeps_capabilities.store(process.keeps_capabilities.load(Ordering::Relaxed), Ordering::Relaxed);
    child.barriers.inherit(&process.barriers);
    child.watched.set_as(&process.watched);
    child.set_no_terminal(process.has_no_terminal());
    child.set_class_and_nice(|_| Ok(process.class_and_nice().of_a_child()))?;
    let descriptor = match copied.words.flags & flag::PIDFD {
        0 => Ok(None),
        _ => open_child(process, &child, copied.words.descriptor).map(Some),
    };
    let started = descriptor.and_then(|descriptor| {
        start(parent, &child, copied).inspect_err(|_| {
            let closed = descriptor.map(|descriptor| process.descriptors.lock().remove(descriptor));
            drop(closed);
        })
    });
    if let Err(error) = started {
        table::discard(&child);
        return Err(error);
    }
    Ok(child)
}

/// Gives a process a descriptor of its child, and tells it at an address.
#[doc(alias = "CLONE_PIDFD")]
fn open_child(process: &Process, child: &Arc<Process>, address: usize) -> Result<usize, Errno> {
    let file = ProcessFile::of_a_child(child, &process.account)?;
    let descriptor = process.descriptors.lock().add(file, true, 0)?;
    let told = process.copy_out(address, &(descriptor as u32).to_le_bytes());
    if let Err(error) = told {
        let closed = process.descriptors.lock().remove(descriptor);
        drop(closed);
        return Err(error);
    }
    Ok(descriptor)
}

/// Lets the work pause between two parts, and admits the process again.
async fn pause(process: &Process) -> Result<(), Errno> {
    steps::pause(process).await;
    process.account.admit()
}

/// Gives an empty space the memory of a process.
async fn copy_memory(process: &Process, space: &Space, shared: &Shared) -> Result<(), Errno> {
    let mut next = Some(0);
    while let Some(from) = next {
        next = process.space().lock().copy_regions(&mut space.lock(), from).map_err(map_error)?;
        pause(process).await?;
    }
    for (address, frames) in shared.mappings() {
        let place = Placement::FixedIfFree(address as u64);
        let mapped = space.lock().map_shared(place, frames, Sharing::ReadWrite, Protection::ReadWrite, "[kernel]");
        usermode::flush(mapped.map_err(map_error)?.1);
    }
    let mut next = Some(0);
    while let Some(from) = next {
        {
            let mut parent = process.space().lock();
            let (flush, shared) = parent.share_pages(&mut space.lock(), from);
            // Under the lock: no hart may write to a page of which a fault of another hart makes a copy meanwhile.
            usermode::flush(flush);
            next = shared.map_err(|OutOfMemory| Errno::ENOMEM)?;
        }
        pause(process).await?;
    }
    Ok(())
}

/// Gives a copy its signals and its worker.
fn start(parent: &Worker, child: &Arc<Process>, copied: Copied) -> Result<(), Errno> {
    let Copied { context, words } = copied;
    let process = &parent.process;
    child.set_name(process.name());
    *child.executable.lock() = process.executable.lock().clone();
    child.signals.copy_actions(&process.signals, &child.account)?;
    if words.flags & flag::CLEAR_SIGHAND != 0 {
        child.signals.start_afresh();
    }
    // Page tables are charged when there are some, as everywhere.
    child.charge_tables();
    let number = child.id.to_le_bytes();
    let has = |which: u64| words.flags & which != 0;
    // As on Linux, a bad address does not keep the process from starting.
    if has(flag::PARENT_SETTID) {
        let _ = process.copy_out(words.parent, &number);
    }
    if has(flag::CHILD_SETTID) {
        let _ = child.copy_out(words.child, &number);
    }
    switching::start_worker(child, context, |worker| {
        worker.signals.copy(&parent.signals);
        worker.inherit_settings(parent);
        // Signals may have come since the process has its number, and found no receiver.
        worker.set_attention(Attention::SIGNAL);
        if has(flag::CHILD_CLEARTID) {
            worker.set_end_word(words.child);
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use core::future::Future;
    use core::task::Context;

    use abi_unix::SystemCall;
    use abi_unix::types::{control, futex, limit, signal};

    use super::*;
    use crate::testing::{Program, run};

    /// Starts a copy that runs this body; a fake program is found by its thread pointer.
    fn copy(
        program: &mut Program,
        more: u64,
        child: usize,
        body: impl FnOnce(&mut Program) + Send + 'static,
    ) -> Result<usize, Errno> {
        let identity = program.identity_for(body);
        let flags = (flag::SETTLS | more) as usize | signal::CHLD as usize;
        program.call(SystemCall::Clone, [flags, 0, child, identity, child])
    }

    #[test]
    fn a_copy_has_the_memory_of_its_parent_and_changes_only_its_own() {
        run(|program| {
            let word = program.place(8);
            program.write(word, &5u64.to_le_bytes());
            let parent = program.id as usize;
            let child = copy(program, 0, 0, move |program| {
                assert_eq!(program.given, 0, "clone gives 0 to the copy");
                assert_ne!(program.id as usize, parent);
                assert_eq!(program.call(SystemCall::GetParent, []), Ok(parent));
                assert_eq!(program.read_u64(word), 5);
                program.write(word, &6u64.to_le_bytes());
                assert_eq!(program.read_u64(word), 6);
                let _ = program.call(SystemCall::ExitGroup, [3]);
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0x300)));
            assert_eq!(program.read_u64(word), 5);
            program.write(word, &7u64.to_le_bytes());
            assert_eq!(program.read_u64(word), 7);
        });
    }

    #[test]
    fn descriptors_above_a_limit_that_was_lowered_are_copied() {
        run(|program| {
            let limits = program.place(16);
            assert_eq!(program.call(SystemCall::DuplicateTo, [0, 20, 0]), Ok(20));
            program.write(limits, &[4u64.to_le_bytes(), 4u64.to_le_bytes()].concat());
            let lowered = program.call(SystemCall::ProcessLimit, [0, limit::DESCRIPTORS as usize, limits, 0]);
            assert_eq!(lowered, Ok(0));
            let child = copy(program, 0, 0, |program| {
                assert_eq!(program.call(SystemCall::FileControl, [20, control::GETFD as usize, 0]), Ok(0));
                let _ = program.call(SystemCall::ExitGroup, [5]);
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0x500)));
        });
    }

    #[test]
    fn a_copy_has_the_open_files_and_numbers_that_were_asked_for() {
        run(|program| {
            let ends = program.place(8);
            assert_eq!(program.call(SystemCall::Pipe, [ends, 0]), Ok(0));
            let (reader, writer) = (program.read_u32(ends) as usize, program.read_u32(ends + 4) as usize);
            let (word, text) = (program.place(8), program.store(b"x"));
            let flags = flag::CHILD_SETTID | flag::CHILD_CLEARTID | flag::PARENT_SETTID;
            let child = copy(program, flags, word, move |program| {
                assert_eq!(program.read_u32(word), program.id);
                assert_eq!(program.call(SystemCall::Write, [writer, text, 1]), Ok(1));
            });
            let child = child.unwrap();
            assert_eq!(program.read_u32(word) as usize, child);
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert_eq!(program.call(SystemCall::Read, [reader, text, 1]), Ok(1));
            // The word of the parent stays.
            assert_eq!(program.read_u32(word) as usize, child);
            let waits = program.call(SystemCall::Futex, [word, futex::WAIT as usize, 0, 0, 0, 0]);
            assert_eq!(waits, Err(Errno::EAGAIN));
        });
    }

    /// Starts a process in the memory of the caller, which runs this body, and waits for it.
    fn lend(program: &mut Program, body: impl FnOnce(&mut Program) + Send + 'static) -> Result<usize, Errno> {
        copy(program, flag::VM | flag::VFORK, 0, body)
    }

    #[test]
    fn a_borrower_has_its_lender_s_memory_until_it_ends() {
        run(|program| {
            let word = program.place(8);
            let process = program.process();
            let before = process.charged_without_tables();
            let begin = crate::time::now_ns();
            let child = lend(program, move |program| {
                {
                    let process = program.process();
                    assert_eq!(process.memory(), process.account.own(Resource::Memory), "no page is its own");
                }
                program.sleep_ns(1_000_000);
                program.write(word, &6u64.to_le_bytes());
                let _ = program.call(SystemCall::ExitGroup, [3]);
            });
            assert!(crate::time::now_ns() - begin >= 1_000_000, "the lender has waited");
            assert_eq!(program.read_u64(word), 6);
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0x300)));
            program.write(word, &7u64.to_le_bytes());
            assert_eq!((program.read_u64(word), process.charged_without_tables()), (7, before));
        });
    }

    /// `posix_spawn`: an error of `execve` reaches the parent through the memory that both have.
    #[test]
    fn a_borrower_that_executes_a_program_gives_the_memory_back() {
        run(|program| {
            let word = program.place(8);
            let (path, missing) = (program.store(crate::testing::PATH), program.store(b"/bin/missing\0"));
            let (sender, receiver) = std::sync::mpsc::channel();
            let child = lend(program, move |program| {
                let failed = program.call(SystemCall::Execute, [missing, 0, 0]);
                program.write(word, &(failed.unwrap_err() as u64).to_le_bytes());
                assert!(program.process().address_space.is_borrowing(), "a call that fails changes nothing");
                program.goes_on_as(move |program| {
                    assert!(!program.process().address_space.is_borrowing());
                    assert_eq!(program.read_u64(word), 0, "its memory is its own");
                    program.write(word, &9u64.to_le_bytes());
                    sender.send(()).unwrap();
                    program.sleep_ns(5_000_000);
                });
                let _ = program.call(SystemCall::Execute, [path, 0, 0]);
                panic!("the old program goes on");
            });
            let child = child.unwrap();
            assert_eq!(program.read_u64(word), Errno::ENOENT as u64);
            program.sleep_ns(1_000_000);
            assert_eq!(receiver.try_recv(), Ok(()), "it runs beside its parent");
            assert_eq!(program.read_u64(word), Errno::ENOENT as u64);
            assert_eq!(program.wait_for(child), Ok((child, 0)));
        });
    }

    /// A lender that is killed while it waits takes the borrower with it, and gives all memory back.
    #[test]
    fn the_end_of_a_lender_ends_its_borrowers() {
        run(|program| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let parent = program.spawn(move |program| {
                let _ = lend(program, move |program| {
                    let first = program.process();
                    let _ = lend(program, move |program| {
                        sender.send([first, program.process()]).unwrap();
                        program.sleep_ns(1_000_000_000_000);
                    });
                });
                panic!("it does not go on");
            });
            let parent = parent.unwrap();
            program.sleep_ns(1_000_000);
            assert_eq!(program.call(SystemCall::Kill, [parent, signal::KILL as usize]), Ok(0));
            assert_eq!(program.wait_for(parent), Ok((parent, signal::KILL)));
            for borrower in receiver.recv().unwrap() {
                assert!(borrower.has_ended() && borrower.live_workers() == 0);
            }
        });
    }

    #[test]
    fn a_killed_borrower_lets_its_lender_go_on() {
        run(|program| {
            let (sender, receiver) = std::sync::mpsc::channel();
            program
                .add_worker(move |program| {
                    program.sleep_ns(1_000_000);
                    let child: u32 = receiver.recv().unwrap();
                    assert_eq!(program.call(SystemCall::Kill, [child as usize, signal::KILL as usize]), Ok(0));
                })
                .unwrap();
            let child = lend(program, move |program| {
                sender.send(program.id).unwrap();
                program.sleep_ns(1_000_000_000_000);
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, signal::KILL)));
        });
    }

    /// Another thread of the lender executes a program: the memory is changed only when no other process has it.
    #[test]
    fn a_lender_s_memory_outlasts_its_borrowers() {
        run(|program| {
            let child = program.spawn(|program| {
                let (sender, receiver) = std::sync::mpsc::channel();
                let path = program.store(crate::testing::PATH);
                program
                    .add_worker(move |program| {
                        program.sleep_ns(1_000_000);
                        let borrower: std::sync::Arc<Process> = receiver.recv().unwrap();
                        program.goes_on_as(move |_| assert!(borrower.has_ended() && borrower.live_workers() == 0));
                        let _ = program.call(SystemCall::Execute, [path, 0, 0]);
                        panic!("the old program goes on");
                    })
                    .unwrap();
                let _ = lend(program, move |program| {
                    sender.send(program.process()).unwrap();
                    program.sleep_ns(1_000_000_000_000);
                });
                panic!("its thread was ended");
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
        });
    }

    /// A borrower shares its lender's futexes, has copies of its own, and gets no ring where its lender's would be.
    #[test]
    fn borrowers_act_on_the_memory_that_they_have() {
        run(|program| {
            let (word, woken) = (program.place(8), program.place(8));
            program
                .add_worker(move |program| {
                    assert_eq!(program.call(SystemCall::Futex, [word, futex::WAIT as usize, 0, 0, 0, 0]), Ok(0));
                    program.write(woken, &1u64.to_le_bytes());
                })
                .unwrap();
            program.sleep_ns(1_000_000);
            let child = lend(program, move |program| {
                assert_eq!(program.call(SystemCall::RingSetup, [64, 0]), Err(Errno::EBUSY));
                assert_eq!(program.call(SystemCall::Futex, [word, futex::WAKE as usize, 1, 0, 0, 0]), Ok(1));
                program.write(word, &2u64.to_le_bytes());
                let copy = program.fork(move |program| {
                    assert_eq!(program.read_u64(word), 2);
                    program.write(word, &3u64.to_le_bytes());
                });
                let copy = copy.unwrap();
                assert_eq!(program.wait_for(copy), Ok((copy, 0)));
                let mapped = program.call(SystemCall::Map, [0, 4096, 3, 0x22, usize::MAX, 0]).unwrap();
                program.write(mapped, &4u64.to_le_bytes());
                program.write(word, &(mapped as u64).to_le_bytes());
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            let mapped = program.read_u64(word) as usize;
            assert_eq!(program.read_u64(mapped), 4);
            program.sleep_ns(1_000_000);
            assert_eq!(program.read_u64(woken), 1);
        });
    }

    /// `clone3` starts what `clone` starts; its copies can forget handlers, and keep what is ignored.
    #[test]
    fn a_copy_of_clone3_can_begin_without_handlers() {
        run(|program| {
            let (caught, ignored) = (10usize, 12usize);
            let handler = program.store(&[0x5000u64.to_le_bytes(), [0; 8], [0; 8]].concat());
            assert_eq!(program.call(SystemCall::SignalAction, [caught, handler, 0, 8]), Ok(0));
            let ignore = program.store(&[1u64.to_le_bytes(), [0; 8], [0; 8]].concat());
            assert_eq!(program.call(SystemCall::SignalAction, [ignored, ignore, 0, 8]), Ok(0));
            for (more, expected) in [(0, 0x5000), (flag::CLEAR_SIGHAND, 0), (flag::VM | flag::VFORK, 0x5000)] {
                let word = program.place(8);
                let identity = program.identity_for(move |program| {
                    let old = program.place(24);
                    assert_eq!(program.call(SystemCall::SignalAction, [caught, 0, old, 8]), Ok(0));
                    assert_eq!(program.read_u64(old), expected);
                    assert_eq!(program.call(SystemCall::SignalAction, [ignored, 0, old, 8]), Ok(0));
                    assert_eq!(program.read_u64(old), 1);
                    assert_eq!(program.read_u32(word), program.id);
                });
                let arguments = flag::Arguments {
                    flags: more | flag::SETTLS | flag::CHILD_SETTID | flag::PARENT_SETTID,
                    child: word as u64,
                    parent: word as u64,
                    exit_signal: signal::CHLD.into(),
                    thread_pointer: identity as u64,
                    ..flag::Arguments::default()
                };
                let arguments = program.store(&arguments.to_bytes());
                let child = program.call(SystemCall::CloneWith, [arguments, flag::Arguments::SIZE]).unwrap();
                assert_eq!(program.read_u32(word) as usize, child);
                assert_eq!(program.wait_for(child), Ok((child, 0)));
            }
        });
    }

    #[test]
    fn invalid_structures_of_clone3_are_refused() {
        run(|program| {
            let good = flag::Arguments { exit_signal: 17, ..flag::Arguments::default() };
            let place = program.place(4096);
            let mut call = |arguments: flag::Arguments, size: usize| {
                program.write(place, &arguments.to_bytes());
                program.call(SystemCall::CloneWith, [place, size])
            };
            for bad in [
                flag::Arguments { flags: 17, ..good },
                flag::Arguments { flags: flag::DETACHED, ..good },
                flag::Arguments { exit_signal: 65, ..good },
                flag::Arguments { exit_signal: 1 << 40, ..good },
                flag::Arguments { flags: flag::SHARED, ..good },
                flag::Arguments { stack: 0x1_0000, ..good },
                flag::Arguments { stack_size: 0x1_0000, ..good },
                flag::Arguments { stack: u64::MAX, stack_size: 2, ..good },
                flag::Arguments { stack: 1 << 62, stack_size: 16, ..good },
                flag::Arguments { flags: flag::CLEAR_SIGHAND | flag::SIGHAND | flag::VM, ..good },
                flag::Arguments { flags: flag::THREAD, exit_signal: 0, ..good },
                flag::Arguments { number_count: 1, ..good },
            ] {
                assert_eq!(call(bad, flag::Arguments::SIZE), Err(Errno::EINVAL), "{bad:?}");
            }
            let numbered = flag::Arguments { numbers: place as u64, number_count: 1, ..good };
            assert_eq!(call(numbered, flag::Arguments::SIZE), Err(Errno::EPERM));
            for flags in [flag::VM, flag::FILES, 1 << 33] {
                assert_eq!(call(flag::Arguments { flags, ..good }, 64), Err(Errno::ENOSYS), "{flags:#x}");
            }
            assert_eq!(call(good, 63), Err(Errno::EINVAL));
            assert_eq!(call(good, 4097), Err(Errno::E2BIG));
            program.write(place + 4095, &[1]);
            assert_eq!(program.call(SystemCall::CloneWith, [place, 4096]), Err(Errno::E2BIG));
            assert_eq!(program.call(SystemCall::CloneWith, [0x1000, 88]), Err(Errno::EFAULT));
        });
    }

    #[test]
    fn a_copy_blocks_and_ignores_the_signals_of_its_parent() {
        run(|program| {
            let (ignored, blocked) = (12usize, 1u64 << 9);
            let action = program.store(&[1u64.to_le_bytes(), [0; 8], [0; 8]].concat());
            assert_eq!(program.call(SystemCall::SignalAction, [ignored, action, 0, 8]), Ok(0));
            let set = program.store(&blocked.to_le_bytes());
            assert_eq!(program.call(SystemCall::SignalMask, [2, set, 0, 8]), Ok(0));
            let own = program.id as usize;
            assert_eq!(program.call(SystemCall::Kill, [own, 10]), Ok(0));
            let child = copy(program, flag::VM | flag::VFORK, 0, move |program| {
                let own = program.id as usize;
                let place = program.place(8);
                assert_eq!(program.call(SystemCall::SignalPending, [place, 8]), Ok(0));
                assert_eq!(program.read_u64(place), 0, "what is pending is the parent's");
                assert_eq!(program.call(SystemCall::Kill, [own, 10]), Ok(0));
                assert_eq!(program.call(SystemCall::Kill, [own, ignored]), Ok(0));
                assert_eq!(program.call(SystemCall::SignalPending, [place, 8]), Ok(0));
                assert_eq!(program.read_u64(place), blocked);
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
        });
    }

    /// A call that is dropped in the middle leaves the copy with its process, whose end frees it.
    #[test]
    fn a_copy_that_is_dropped_midway_is_freed_in_steps_by_the_end_of_its_process() {
        run(|program| {
            let child = program.spawn(|program| {
                let process = program.process();
                let worker = process.workers.lock().first().cloned().unwrap();
                let words = Words { flags: 0, parent: 0, child: 0, descriptor: 0 };
                let mut call = Box::pin(fork(worker, Box::new(UserContext::new(0, 0)), words));
                let mut in_place = Context::from_waker(steps::IN_PLACE);
                assert!(call.as_mut().poll(&mut in_place).is_pending());
                drop(call);
                assert!(!process.beginnings.is_empty());
                program.sleep_ns(1_000_000);
            });
            let child = child.unwrap();
            program.sleep_ns(100_000);
            let process = table::find(child as u32).expect("it sleeps");
            assert!(!process.beginnings.is_empty(), "nothing frees it before the end");
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert!(process.beginnings.is_empty());
        });
    }
}
