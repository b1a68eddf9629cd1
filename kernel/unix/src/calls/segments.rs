//! The calls on segments of shared memory (System V's).

use alloc::sync::Arc;

use abi_unix::Errno;
use abi_unix::types::segment::{self as number, SegmentStatus};
use memory::space::{ObjectUse, Placement, Sharing};
use memory::sv39::Protection;

use crate::calls::call::{Call, Decoding, kept_steps};
use crate::calls::mapping::{Change, RangeParts, map_in_place_of, place, require_addresses};
use crate::files::segments::{self, SharedSegment};
use crate::process::capabilities::Maker;
use crate::process::{Process, authority};
use crate::scheduling::steps;

const PAGE: usize = abi_queue::pages::PAGE_SIZE;

/// Performs `shmget`.
#[inline(never)]
pub(super) fn get(call: Call<'_>) -> Decoding {
    let process = call.admitted()?;
    let maker = authority::maker(process)?;
    let id = segments::get(&process.account, maker, call.signed(0), call.length(1), call.unsigned(2))?;
    Ok((id as usize).into())
}

/// Performs `shmctl`.
#[inline(never)]
pub(super) fn control(call: Call<'_>) -> Decoding {
    let (process, address) = (call.process(), call.address(2));
    let segment = segments::find(call.signed(0))?;
    match call.unsigned(1) {
        number::REMOVE => {
            segment.maker().permit_control(&process.authority)?;
            segment.remove();
        }
        number::STATUS => {
            segment.permit_use(&process.authority, Maker::READ)?;
            process.copy_out(address, &segment.status().to_bytes())?;
        }
        number::SET => {
            segment.maker().permit_control(&process.authority)?;
            let mut bytes = [0; SegmentStatus::SIZE];
            process.copy_in(address, &mut bytes)?;
            segment.set(&SegmentStatus::from_bytes(&bytes));
        }
        // Pages are never written to a disk.
        number::LOCK | number::UNLOCK => {}
        _ => return Err(Errno::EINVAL),
    }
    Ok(0.into())
}

/// Performs `shmat`.
#[doc(alias = "do_shmat")]
#[inline(never)]
pub(super) fn attach(call: Call<'_>) -> Decoding {
    let (process, flags) = (call.admitted()?.clone(), call.unsigned(2));
    let segment = segments::find(call.signed(0))?;
    let mut address = call.address(1);
    if flags & number::ROUND != 0 {
        address -= address % PAGE;
    }
    if !address.is_multiple_of(PAGE) || flags & number::REMAP != 0 && address == 0 {
        return Err(Errno::EINVAL);
    }
    let (protection, sharing, rights) = match (flags & number::READ_ONLY != 0, flags & number::EXECUTE != 0) {
        (true, false) => (Protection::Read, Sharing::ReadOnly, Maker::READ),
        (true, true) => (Protection::ReadExecute, Sharing::ReadOnly, Maker::READ | Maker::EXECUTE),
        (false, false) => (Protection::ReadWrite, Sharing::ReadWrite, Maker::READ | Maker::WRITE),
        (false, true) => return Err(Errno::EACCES),
    };
    segment.permit_use(&process.authority, rights)?;
    let length = segment.length();
    let placement = match (address, flags & number::REMAP != 0) {
        (0, _) => Placement::Anywhere,
        (_, replaces) => {
            use abi_unix::types::mapping::{FIXED, FIXED_NOREPLACE};
            place(&process, address, length, if replaces { FIXED } else { FIXED_NOREPLACE })?
        }
    };
    require_addresses(&process, length)?;
    let object = segment.object().clone();
    let object = ObjectUse { object, first: 0, sharing, keeps: Some(segment.clone()) };
    Ok(kept_steps(call.number, async move {
        let mapped = map_in_place_of(&process, placement, length, |at| {
            process.space().lock().map_object(at, length as u64, &object, protection, segments::NAME)
        });
        let start = mapped.await.map_err(|error| if error == Errno::EEXIST { Errno::EINVAL } else { error })?;
        segment.was_attached_by(process.id);
        Ok(start)
    }))
}

/// Returns the segment whose mapping begins at an address.
fn segment_at(process: &Process, address: usize) -> Option<Arc<SharedSegment>> {
    let first = address as u64..(address as u64).checked_add(PAGE as u64)?;
    let (_, object) = process.space().lock().uniform(&first)?;
    let object = object.filter(|object| object.first == 0)?;
    object.keeps.and_then(|keeps| keeps.downcast().ok())
}

/// Performs `shmdt`: unmaps what is left of the mapping that begins at an address.
#[doc(alias = "ksys_shmdt")]
#[inline(never)]
pub(super) fn detach(call: Call<'_>) -> Decoding {
    let (process, address) = (call.process().clone(), call.address(0));
    if !address.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let segment = segment_at(&process, address).ok_or(Errno::EINVAL)?;
    Ok(kept_steps(call.number, async move {
        let (start, mut at) = (address as u64, address as u64);
        let end = start + segment.length() as u64;
        loop {
            let part = {
                let space = process.space().lock();
                let Some(region) = space.region_above(at).filter(|region| region.range.start < end) else { break };
                let (first, last) = (region.range.start.max(at), region.range.end.min(end));
                let is_its = space.object_at(first).is_some_and(|(object, distance)| {
                    Arc::ptr_eq(object, segment.object()) && distance == first - start
                });
                at = last;
                is_its.then(|| RangeParts::new(&space, first as usize, (last - first) as usize))
            };
            if let Some(part) = part {
                Change::Unmap.go_on(&process, part).await?;
            }
            steps::pause(&process).await;
        }
        segment.was_detached_by(process.id);
        Ok(0)
    }))
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::clone as flag;
    use abi_unix::types::signal;

    use super::*;
    use crate::process::accounts::Resource;
    use crate::testing::{Program, run};

    const CREATE: usize = number::CREATE as usize | 0o600;

    fn get(program: &mut Program, key: i32, size: usize, flags: usize) -> Result<usize, Errno> {
        program.call(SystemCall::SegmentGet, [key as usize, size, flags])
    }

    fn attach(program: &mut Program, id: usize, address: usize, flags: u32) -> Result<usize, Errno> {
        program.call(SystemCall::SegmentAttach, [id, address, flags as usize])
    }

    fn status(program: &mut Program, id: usize) -> Result<SegmentStatus, Errno> {
        let place = program.place(SegmentStatus::SIZE);
        program.call(SystemCall::SegmentControl, [id, number::STATUS as usize, place])?;
        Ok(SegmentStatus::from_bytes(program.read(place, SegmentStatus::SIZE).as_slice().try_into().unwrap()))
    }

    fn control(program: &mut Program, id: usize, command: u32) -> Result<usize, Errno> {
        program.call(SystemCall::SegmentControl, [id, command as usize, 0])
    }

    #[test]
    fn segments_are_found_by_their_keys_until_they_are_removed() {
        run(|program| {
            const KEY: i32 = 0x1234;
            assert_eq!(get(program, KEY, 4096, 0), Err(Errno::ENOENT));
            for size in [0, usize::MAX, 1 << 40] {
                assert_eq!(get(program, KEY, size, CREATE), Err(Errno::EINVAL), "{size}");
            }
            assert_eq!(get(program, KEY, 1, CREATE | 0o4000), Err(Errno::EINVAL), "no huge pages");
            let id = get(program, KEY, 5000, CREATE).unwrap();
            assert_eq!((get(program, KEY, 5000, 0), get(program, KEY, 0, CREATE)), (Ok(id), Ok(id)));
            assert_eq!(get(program, KEY, 5001, 0), Err(Errno::EINVAL));
            assert_eq!(get(program, KEY, 1, CREATE | number::EXCLUSIVE as usize), Err(Errno::EEXIST));
            let (first, second) = (get(program, 0, 1, 0).unwrap(), get(program, 0, 1, 0).unwrap());
            assert!(first != second && first != id);
            let found = status(program, id).unwrap();
            assert_eq!((found.key, found.size, found.mode, found.mappings), (KEY, 5000, 0o600, 0));
            assert_eq!((found.maker, found.last), (program.id, 0));
            for command in [number::LOCK, number::UNLOCK] {
                assert_eq!(control(program, id, command), Ok(0));
            }
            for command in [3, 13, 14, 99] {
                assert_eq!(control(program, id, command), Err(Errno::EINVAL));
            }
            let place = program.store(&SegmentStatus { mode: 0o7644, user: 5, ..found }.to_bytes());
            assert_eq!(program.call(SystemCall::SegmentControl, [id, number::SET as usize, place]), Ok(0));
            assert_eq!(status(program, id).map(|found| (found.mode, found.user)), Ok((0o644, 5)));
            for id in [id, first, second] {
                assert_eq!(control(program, id, number::REMOVE), Ok(0));
                assert_eq!(control(program, id, number::REMOVE), Err(Errno::EINVAL));
                assert_eq!(attach(program, id, 0, 0), Err(Errno::EINVAL));
            }
            assert_eq!(get(program, KEY, 1, 0), Err(Errno::ENOENT));
        });
    }

    /// A process and its copy have the memory in common; the segment ends with the last mapping after its removal.
    #[test]
    fn mappings_are_common_and_counted() {
        run(|program| {
            let used = |program: &Program| program.process().account.used(Resource::Files);
            let before = used(program);
            let id = get(program, 0, 3 * PAGE, CREATE).unwrap();
            let first = attach(program, id, 0, 0).unwrap();
            let second = attach(program, id, 0, number::READ_ONLY).unwrap();
            assert_eq!(status(program, id).map(|found| found.mappings), Ok(2));
            program.write(first + PAGE, b"common");
            assert_eq!(program.read(second + PAGE, 6), b"common");
            assert!(program.process().copy_out(second, b"x").is_err(), "it is read only");
            let protect = [second, PAGE, 3];
            assert_eq!(program.call(SystemCall::Protect, protect), Err(Errno::EACCES));
            let identity = program.identity_for(move |program| {
                assert_eq!(status(program, id).map(|found| found.mappings), Ok(4));
                program.write(first, b"child");
                assert_eq!(control(program, id, number::REMOVE), Ok(0));
                assert_eq!(status(program, id).map(|found| found.mode & number::IS_REMOVED != 0), Ok(true));
            });
            let flags = flag::SETTLS as usize | signal::CHLD as usize;
            let child = program.call(SystemCall::Clone, [flags, 0, 0, identity, 0]).unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert_eq!(program.read(second, 5), b"child");
            assert_eq!(status(program, id).map(|found| found.mappings), Ok(2));
            let detach = |program: &mut Program, at: usize| program.call(SystemCall::SegmentDetach, [at]);
            for (address, error) in [
                (first + 1, Errno::EINVAL),
                (first + PAGE, Errno::EINVAL),
                (0, Errno::EINVAL),
                (PAGE.wrapping_neg(), Errno::EINVAL),
            ] {
                assert_eq!(detach(program, address), Err(error));
            }
            assert_eq!((detach(program, second), detach(program, second)), (Ok(0), Err(Errno::EINVAL)));
            // A hole in the middle, where something else is: that stays.
            assert_eq!(program.call(SystemCall::Unmap, [first + PAGE, PAGE]), Ok(0));
            let other = [first + PAGE, PAGE, 3, 0x32, usize::MAX, 0];
            assert_eq!(program.call(SystemCall::Map, other), Ok(first + PAGE));
            program.write(first + PAGE, b"other");
            assert_eq!(detach(program, first), Ok(0));
            assert_eq!(program.read(first + PAGE, 5), b"other");
            assert!(program.process().copy_in(first + 2 * PAGE, &mut [0]).is_err());
            assert_eq!(status(program, id), Err(Errno::EINVAL), "it has ended");
            program.call(SystemCall::Unmap, [first + PAGE, PAGE]).unwrap();
            program.sleep_ns(1_000_000);
            assert_eq!(used(program), before);
        });
    }

    /// A segment that is left behind counts among what stays, and not among what goes with its maker.
    #[test]
    fn what_a_process_leaves_is_charged_as_files_are() {
        run(|program| {
            let of = |program: &Program, resource| program.process().account.used(resource);
            let (files, memory) = (of(program, Resource::Files), of(program, Resource::Memory));
            let child = program.fork(move |program| {
                let id = get(program, 0x777, 64 * PAGE, CREATE).unwrap();
                let at = attach(program, id, 0, 0).unwrap();
                for page in 0..64 {
                    program.write(at + page * PAGE, b"left");
                }
                assert!(of(program, Resource::Files) >= 64 * PAGE, "{}", of(program, Resource::Files));
                let set = [0x777, 4000, CREATE];
                let before = of(program, Resource::Files);
                assert!(program.call(SystemCall::SemaphoreGet, set).is_ok());
                assert!(of(program, Resource::Files) > before + 4000);
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            program.sleep_ns(1_000_000);
            assert!(of(program, Resource::Memory) < memory + 64 * PAGE);
            let id = get(program, 0x777, 0, 0).unwrap();
            assert_eq!(control(program, id, number::REMOVE), Ok(0));
            let set = program.call(SystemCall::SemaphoreGet, [0x777, 0, 0]).unwrap();
            assert_eq!(program.call(SystemCall::SemaphoreControl, [set, 0, number::REMOVE as usize, 0]), Ok(0));
            program.sleep_ns(1_000_000);
            assert_eq!(of(program, Resource::Files), files);
        });
    }

    /// Another user has what the mode grants to all; a copy of the maker is the same user, and one above it owns all
    /// that it has left.
    #[test]
    fn others_use_a_segment_as_its_mode_says_and_do_not_remove_it() {
        run(|program| {
            const KEY: usize = 0x778;
            let id = get(program, KEY as i32, PAGE, CREATE).unwrap();
            let set = program.call(SystemCall::SemaphoreGet, [KEY, 1, CREATE]).unwrap();
            let semaphore = move |program: &mut Program, command: u32, argument: usize| {
                program.call(SystemCall::SemaphoreControl, [set, 0, command as usize, argument])
            };
            let operate = move |program: &mut Program, change: i16| {
                let operation = program.store(&[0i16, change, 0].map(i16::to_le_bytes).concat());
                program.call(SystemCall::SemaphoreOperate, [set, operation, 1])
            };
            use abi_unix::types::semaphore::{GET_ALL, GET_VALUE, SET_ALL, SET_VALUE};
            let stranger = program.spawn(move |program| {
                for flags in [0, number::READ_ONLY] {
                    assert_eq!(attach(program, id, 0, flags), Err(Errno::EACCES));
                }
                assert_eq!(get(program, KEY as i32, 1, 0o600), Err(Errno::EACCES));
                assert_eq!(get(program, KEY as i32, 1, 0), Ok(id), "its number is no secret");
                assert_eq!(status(program, id).map(drop), Err(Errno::EACCES));
                let place = program.place(SegmentStatus::SIZE);
                for command in [number::REMOVE, number::SET] {
                    let set = [id, command as usize, place];
                    assert_eq!(program.call(SystemCall::SegmentControl, set), Err(Errno::EPERM));
                    assert_eq!(semaphore(program, command, place), Err(Errno::EPERM));
                }
                for command in [SET_VALUE, SET_ALL] {
                    assert_eq!(semaphore(program, command, place), Err(Errno::EPERM));
                }
                for command in [number::STATUS, GET_VALUE, GET_ALL] {
                    assert_eq!(semaphore(program, command, place), Err(Errno::EACCES));
                }
                for change in [1, 0] {
                    assert_eq!(operate(program, change), Err(Errno::EACCES));
                }
                assert_eq!(program.call(SystemCall::SemaphoreGet, [KEY, 1, 0o600]), Err(Errno::EACCES));
                // Its own is its parent's, too.
                assert!(get(program, KEY as i32 + 1, 1, CREATE).is_ok());
            });
            let stranger = stranger.unwrap();
            assert_eq!(program.wait_for(stranger), Ok((stranger, 0)));
            // The mode grants some of it to all.
            let found = SegmentStatus { mode: 0o604, ..status(program, id).unwrap() };
            let place = program.store(&found.to_bytes());
            assert_eq!(program.call(SystemCall::SegmentControl, [id, number::SET as usize, place]), Ok(0));
            let reader = program.spawn(move |program| {
                assert!(attach(program, id, 0, number::READ_ONLY).is_ok() && status(program, id).is_ok());
                assert_eq!(attach(program, id, 0, 0), Err(Errno::EACCES));
                assert_eq!(control(program, id, number::REMOVE), Err(Errno::EPERM));
            });
            let reader = reader.unwrap();
            assert_eq!(program.wait_for(reader), Ok((reader, 0)));
            let copy = program.fork(move |program| {
                assert!(attach(program, id, 0, 0).is_ok());
                assert_eq!((operate(program, 1), semaphore(program, SET_VALUE, 3)), (Ok(0), Ok(0)));
                assert_eq!(
                    (control(program, id, number::REMOVE), semaphore(program, number::REMOVE, 0)),
                    (Ok(0), Ok(0))
                );
            });
            let copy = copy.unwrap();
            assert_eq!(program.wait_for(copy), Ok((copy, 0)));
            let left = get(program, KEY as i32 + 1, 0, 0o600).unwrap();
            assert!(attach(program, left, 0, 0).is_ok());
            assert_eq!(control(program, left, number::REMOVE), Ok(0));
        });
    }

    #[test]
    fn places_are_chosen_and_replaced_as_asked_for() {
        run(|program| {
            let id = get(program, 0, PAGE, CREATE).unwrap();
            let at = attach(program, id, 0, 0).unwrap();
            assert_eq!(attach(program, id, at, 0), Err(Errno::EINVAL), "something is there");
            assert_eq!(attach(program, id, at + 1, number::REMAP), Err(Errno::EINVAL));
            assert_eq!(attach(program, id, 0, number::REMAP), Err(Errno::EINVAL));
            assert_eq!(attach(program, id, at + 1, number::ROUND | number::REMAP), Ok(at));
            assert_eq!(attach(program, id, 0, number::EXECUTE), Err(Errno::EACCES));
            assert_eq!(attach(program, usize::MAX, 0, 0), Err(Errno::EINVAL));
            assert_eq!(control(program, id, number::REMOVE), Ok(0));
            assert_eq!(program.call(SystemCall::SegmentDetach, [at]), Ok(0));
        });
    }
}
