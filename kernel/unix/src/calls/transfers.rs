//! The calls that move bytes: `read`, `write` and their kin, and `getrandom`.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi_unix::Errno;
use abi_unix::types::{RWF_HIPRI, epoll as event, message, open, splicing};
use zerocopy::IntoBytes;

use crate::asynchronous::messages::{MessageOut, MessageToReceive, MessageToSend};
use crate::asynchronous::operation::{Operation, VectorAtPlace};
use crate::asynchronous::relay::{Relay, RelayPlace};
use crate::asynchronous::splice::{Splice, sink_of, source_of};
use crate::calls::call::{Call, Decoding, kept};
use crate::files::file::OpenFile;
use crate::files::gathered::MOST_BYTES;
use crate::files::message::Recipient;
use crate::process::Process;
use crate::process::accounts::Resource;
use crate::process::user::{Buffers, LARGEST_TRANSFER, UserBuffer};

/// Greatest number of buffers of one vector call (`IOV_MAX`).
pub(super) const MOST_BUFFERS: usize = 1024;

#[inline(always)]
pub(super) fn read(call: Call<'_>) -> Decoding {
    let (file, buffer) = (call.file(0)?, checked_buffer(&call, 1)?);
    Ok(Operation::Read { file, buffers: buffer.into(), done: 0 }.into())
}

#[inline(always)]
pub(super) fn write(call: Call<'_>) -> Decoding {
    let (file, buffer) = (call.file(0)?, checked_buffer(&call, 1)?);
    if buffer.len() > MOST_BYTES && file.must_gather(&[buffer]).is_some() {
        return Ok(gathering(file, buffer.into()).into());
    }
    Ok(Operation::Write { file, buffers: buffer.into(), written: 0 }.into())
}

/// Returns the write of inseparable bytes, which are gathered first.
#[cold]
fn gathering(file: Arc<OpenFile>, buffers: Buffers) -> Operation {
    Operation::SendMessage(kept(MessageToSend::new(file, buffers, 0, Recipient::Peer, None)))
}

#[inline(never)]
pub(super) fn read_vector(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    file.require_readable()?;
    Ok(match vector(call.process(), call.address(1), call.word(2))? {
        // As on Linux, a vector of nothing does not even look whether there is something to read.
        buffers if buffers.iter().all(|buffer| buffer.is_empty()) => 0.into(),
        buffers if file.must_scatter(&buffers).is_some() => {
            let receiving = MessageToReceive::new(file, buffers, 0, MessageOut::Address(None));
            Operation::ReceiveMessage(kept(receiving)).into()
        }
        buffers => Operation::Read { file, buffers, done: 0 }.into(),
    })
}

#[inline(never)]
pub(super) fn write_vector(call: Call<'_>) -> Decoding {
    let file = call.file(0)?;
    file.require_writable()?;
    Ok(match vector(call.process(), call.address(1), call.word(2))? {
        buffers if buffers.iter().all(|buffer| buffer.is_empty()) => 0.into(),
        buffers if file.must_gather(&buffers).is_some() => gathering(file, buffers).into(),
        buffers => Operation::Write { file, buffers, written: 0 }.into(),
    })
}

#[inline(never)]
pub(super) fn read_at(call: Call<'_>) -> Decoding {
    let (file, buffer) = (call.file(0)?, call.buffer(1)?);
    Ok(Operation::ReadAt { file, buffer, offset: call.offset(3)?, done: 0 }.into())
}

#[inline(never)]
pub(super) fn write_at(call: Call<'_>) -> Decoding {
    let (file, buffer) = (call.file(0)?, call.buffer(1)?);
    Ok(Operation::WriteAt { file, buffer, offset: call.offset(3)?, done: 0 }.into())
}

/// Performs `preadv`. The second half of the offset is for machines with shorter words.
#[inline(never)]
pub(super) fn read_vector_at(call: Call<'_>) -> Decoding {
    vector_at(&call, false)
}

/// Performs `pwritev`.
#[inline(never)]
pub(super) fn write_vector_at(call: Call<'_>) -> Decoding {
    vector_at(&call, true)
}

/// Performs `preadv2`.
#[inline(never)]
pub(super) fn read_vector_with(call: Call<'_>) -> Decoding {
    if is_at_position(&call)? { read_vector(call) } else { vector_at(&call, false) }
}

/// Performs `pwritev2`.
#[inline(never)]
pub(super) fn write_vector_with(call: Call<'_>) -> Decoding {
    if is_at_position(&call)? { write_vector(call) } else { vector_at(&call, true) }
}

/// Returns whether such a call is about the file's position. `EOPNOTSUPP` for unknown flags.
fn is_at_position(call: &Call<'_>) -> Result<bool, Errno> {
    call.file(0)?;
    if call.unsigned(5) & !RWF_HIPRI != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(call.word(3) == usize::MAX)
}

fn vector_at(call: &Call<'_>, writes: bool) -> Decoding {
    let (file, offset) = (call.file(0)?, call.offset(3)?);
    let buffers = vector(call.process(), call.address(1), call.word(2))?;
    Ok(Operation::VectorAt(kept(VectorAtPlace { file, buffers, offset, done: 0, writes })).into())
}

/// Reads a place that the program keeps at an address; 0 stands for the file's position. `negative` if it is none.
fn place_at(call: &Call<'_>, argument: usize, negative: Errno) -> Result<RelayPlace, Errno> {
    let address = call.address(argument);
    if address == 0 {
        return Ok(RelayPlace::Position);
    }
    let mut bytes = [0; 8];
    call.process().copy_in(address, &mut bytes)?;
    let place = u64::try_from(i64::from_le_bytes(bytes)).map_err(|_| negative)?;
    Ok(RelayPlace::Kept(place, address))
}

#[inline(never)]
pub(super) fn send_file(call: Call<'_>) -> Decoding {
    call.admitted()?;
    let (output, input) = (call.file(0)?, call.file(1)?);
    output.require_writable()?;
    input.require_readable()?;
    let length = call.length(3);
    if !input.is_regular() || output.flags() & open::APPEND != 0 || (length as isize) < 0 {
        return Err(Errno::EINVAL);
    }
    let from = place_at(&call, 2, Errno::EINVAL)?;
    let account = &call.process().account;
    let relay = Relay::new(account, call.number, (input, from), (output, RelayPlace::Position), length)?;
    Ok(Operation::Relay(kept(relay)).into())
}

/// Performs `splice`.
#[inline(never)]
pub(super) fn splice(call: Call<'_>) -> Decoding {
    let (length, flags) = (call.length(4), call.unsigned(5));
    if length == 0 {
        return Ok(0.into());
    }
    if flags & !splicing::ALL != 0 {
        return Err(Errno::EINVAL);
    }
    call.admitted()?;
    let (input, output) = (call.file(0)?, call.file(2)?);
    let (source, sink) = (source_of(&input), sink_of(&output));
    if source.is_some() && call.address(1) != 0 || sink.is_some() && call.address(3) != 0 {
        return Err(Errno::ESPIPE);
    }
    let (from, to) = (place_at(&call, 1, Errno::EINVAL)?, place_at(&call, 3, Errno::EINVAL)?);
    input.require_readable()?;
    output.require_writable()?;
    let is_refused = match (source, sink) {
        (Some(source), Some(sink)) => sink.is_read_by(source),
        (Some(_), None) => output.flags() & open::APPEND != 0 || to != RelayPlace::Position && !output.has_places(),
        (None, Some(_)) => from != RelayPlace::Position && !input.has_places() || input.object().directory().is_ok(),
        (None, None) => true,
    };
    if is_refused {
        return Err(Errno::EINVAL);
    }
    let (account, must_not_wait) = (&call.process().account, flags & splicing::NONBLOCK != 0);
    let relay = Relay::new(account, call.number, (input, from), (output, to), length)?;
    Ok(Operation::Splice(kept(Splice::new(relay, must_not_wait))).into())
}

/// Performs `tee`.
#[inline(never)]
pub(super) fn tee(call: Call<'_>) -> Decoding {
    let (length, flags) = (call.length(2), call.unsigned(3));
    if flags & !splicing::ALL != 0 {
        return Err(Errno::EINVAL);
    }
    if length == 0 {
        return Ok(0.into());
    }
    call.admitted()?;
    let (input, output) = (call.file(0)?, call.file(1)?);
    input.require_readable()?;
    output.require_writable()?;
    match (source_of(&input), sink_of(&output)) {
        (Some(source), Some(sink)) if !sink.is_read_by(source) => {}
        _ => return Err(Errno::EINVAL),
    }
    let (account, must_not_wait) = (&call.process().account, flags & splicing::NONBLOCK != 0);
    let ends = ((input, RelayPlace::Position), (output, RelayPlace::Position));
    let relay = Relay::new(account, call.number, ends.0, ends.1, length)?;
    Ok(Operation::Splice(kept(Splice::new(relay, must_not_wait))).into())
}

/// Performs `vmsplice`: writes to a pipe, or reads from one.
#[inline(never)]
pub(super) fn splice_memory(call: Call<'_>) -> Decoding {
    let flags = call.unsigned(3);
    if flags & !splicing::ALL != 0 {
        return Err(Errno::EINVAL);
    }
    call.admitted()?;
    let file = call.file(0)?;
    let (source, sink) = (source_of(&file), sink_of(&file));
    if source.is_none() && sink.is_none() {
        return Err(Errno::EBADF);
    }
    let buffers = vector(call.process(), call.address(1), call.word(2))?;
    if buffers.iter().all(|buffer| buffer.is_empty()) {
        return Ok(0.into());
    }
    let must_not_wait = flags & splicing::NONBLOCK != 0;
    if sink.is_some() {
        let flags = if must_not_wait { message::DONTWAIT } else { 0 };
        return Ok(Operation::SendMessage(kept(MessageToSend::new(file, buffers, flags, Recipient::Peer, None))).into());
    }
    if must_not_wait && file.readiness(&**call.process(), event::IN | event::HUP, None)? == 0 {
        return Err(Errno::EAGAIN);
    }
    Ok(Operation::Read { file, buffers, done: 0 }.into())
}

#[inline(never)]
pub(super) fn copy_range(call: Call<'_>) -> Decoding {
    call.admitted()?;
    let (input, output) = (call.file(0)?, call.file(2)?);
    input.require_readable()?;
    output.require_writable()?;
    if input.object().directory().is_ok() {
        return Err(Errno::EISDIR);
    }
    if call.unsigned(5) != 0 || !input.is_regular() || !output.is_regular() {
        return Err(Errno::EINVAL);
    }
    if output.flags() & open::APPEND != 0 {
        return Err(Errno::EBADF);
    }
    let (from, to) = (place_at(&call, 1, Errno::EOVERFLOW)?, place_at(&call, 3, Errno::EOVERFLOW)?);
    let length = call.length(4);
    let (begin, end) = (from.of(&input)?, to.of(&output)?);
    begin.max(end).checked_add(length as u64).ok_or(Errno::EOVERFLOW)?;
    let rest = input.object().length().unwrap_or(u64::MAX).saturating_sub(begin).min(length as u64);
    // Ranges that overlap.
    if input.identity() == output.identity() && begin.abs_diff(end) < rest {
        return Err(Errno::EINVAL);
    }
    let relay = Relay::new(&call.process().account, call.number, (input, from), (output, to), length)?;
    Ok(Operation::Relay(kept(relay)).into())
}

#[inline(never)]
pub(super) fn random(call: Call<'_>) -> Decoding {
    let flags = call.unsigned(2);
    crate::random::check_flags(flags)?;
    Ok(Operation::Random { buffer: call.buffer(0)?, flags, done: 0 }.into())
}

/// Returns the buffer of a call, whose address and length are in this argument and the next. `EINVAL` if the length is
/// no `ssize_t`.
#[inline(always)]
fn checked_buffer(call: &Call<'_>, argument: usize) -> Result<UserBuffer, Errno> {
    if (call.length(argument + 1) as isize) < 0 {
        return Err(Errno::EINVAL);
    }
    call.buffer(argument)
}

/// Reads the buffers of a vector call (`struct iovec`).
#[doc(alias = "import_iovec")]
pub(super) fn vector(process: &Process, address: usize, count: usize) -> Result<Buffers, Errno> {
    /// Number of entries that are copied together.
    const COPIED_AT_ONCE: usize = 128;
    /// Number of entries that each call in flight has paid for.
    const SHORT: usize = 8;
    if count > MOST_BUFFERS {
        return Err(Errno::EINVAL);
    }
    let charge = match count {
        0..=SHORT => None,
        _ => Some(process.account.charge(Resource::Memory, count * size_of::<UserBuffer>())?),
    };
    let mut buffers = Vec::new();
    buffers.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
    match count {
        0 => {}
        // Most lists are short, and to clear room for a long one takes half a thousand instructions.
        1..=SHORT => read_buffers::<SHORT>(process, address, count, &mut buffers)?,
        _ => read_buffers::<COPIED_AT_ONCE>(process, address, count, &mut buffers)?,
    }
    Buffers::new(buffers, charge)
}

/// Reads so many entries of a vector call, some at once.
#[inline(never)]
fn read_buffers<const AT_ONCE: usize>(
    process: &Process,
    address: usize,
    count: usize,
    buffers: &mut Vec<UserBuffer>,
) -> Result<(), Errno> {
    let (mut place, mut left) = (address, LARGEST_TRANSFER);
    let mut entries = [[0usize; 2]; AT_ONCE];
    while buffers.len() < count {
        let entries = &mut entries[..(count - buffers.len()).min(AT_ONCE)];
        process.copy_in(place, entries.as_mut_bytes())?;
        place += size_of_val(entries);
        UserBuffer::add_to(buffers, entries, &mut left)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::process::user::length_of;
    use crate::testing::{DATA, Program, run};

    #[test]
    fn vectors_are_limited_before_anything_is_moved() {
        run(|program| {
            let process = program.process();
            let words = [DATA, usize::MAX >> 1, DATA, 8, DATA, 1 << 63];
            let list = program.store(&words.map(usize::to_le_bytes).concat());
            let total = |address, count| vector(&process, address, count).map(|buffers| length_of(&buffers));
            assert_eq!(total(list, 2), Ok(LARGEST_TRANSFER), "longer ones are cut off");
            assert_eq!(total(list + 16, 1), Ok(8));
            assert_eq!(total(list + 16, 2), Err(Errno::EINVAL));
            assert_eq!(total(list, MOST_BUFFERS + 1), Err(Errno::EINVAL));
            assert_eq!(total(usize::MAX - 8, 2), Err(Errno::EFAULT));
            assert_eq!(total(list, 0), Ok(0));
        });
    }

    #[test]
    fn lengths_that_are_none_are_refused_and_nothing_is_always_allowed() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            for length in [1 << 63, usize::MAX] {
                assert_eq!(program.call(SystemCall::Read, [reader, DATA, length]), Err(Errno::EINVAL));
                assert_eq!(program.call(SystemCall::Write, [writer, DATA, length]), Err(Errno::EINVAL));
            }
            assert_eq!(program.call(SystemCall::Read, [reader, 0x1000, 0]), Ok(0));
            assert_eq!(program.call(SystemCall::Write, [writer, 0x1000, 0]), Ok(0));
            assert_eq!(program.call(SystemCall::ReadAt, [reader, DATA, 1, 1 << 63]), Err(Errno::EINVAL));
        });
    }

    /// Lists of many buffers, empty ones among them, move bytes to and from a place as one buffer would.
    #[test]
    fn vectors_go_to_places_of_files_and_come_from_them() {
        run(|program| {
            let file = program.create(b"/tmp/vectors\0", abi_unix::types::open::RDWR);
            let bytes: Vec<u8> = (0..44_000u32).map(|number| (number % 251) as u8).collect();
            let (from, to) = (program.store(&bytes), program.place(bytes.len()));
            let list = |program: &mut Program, at: usize| {
                let (mut entries, mut done) = (Vec::new(), 0);
                for index in 0..1024 {
                    let length = [0, 1, 13, 0, 200][index % 5].min(bytes.len() - done);
                    entries.extend([if length == 0 { 0 } else { at + done }, length].map(usize::to_le_bytes).concat());
                    done += length;
                }
                (program.store(&entries), done)
            };
            let (output, length) = list(program, from);
            assert_eq!(program.call(SystemCall::WriteVectorAt, [file, output, 1024, 100, 7]), Ok(length));
            let (input, _) = list(program, to);
            assert_eq!(program.call(SystemCall::ReadVectorAt, [file, input, 1024, 150]), Ok(length - 50));
            assert_eq!(program.read(to, length - 50), bytes[50..length]);
            assert_eq!(program.read_from(file, 200).unwrap()[100..], bytes[..100], "the position has not moved");
            assert_eq!(program.call(SystemCall::ReadVectorAt, [file, input, 1024, 1 << 62]), Ok(0));
            assert_eq!(program.call(SystemCall::WriteVectorAt, [file, output, 0, 0]), Ok(0));
            // Calls with flags do that, too, and know the position of the file, which is at 200 now.
            let with = |program: &mut Program, call, list, place, flags| {
                program.call(call, [file, list, 1024, place, 7, flags])
            };
            let (reads, writes) = (SystemCall::ReadVectorWith, SystemCall::WriteVectorWith);
            assert_eq!(with(program, reads, input, 150, 1), Ok(length - 50));
            assert_eq!(program.read(to, length - 50), bytes[50..length]);
            assert_eq!(with(program, reads, input, usize::MAX, 0), Ok(length - 100));
            assert_eq!(program.read(to, length - 100), bytes[100..length]);
            assert_eq!(with(program, writes, output, usize::MAX, 1), Ok(length), "at the end");
            assert_eq!(with(program, writes, output, 0, 0), Ok(length));
            for (place, flags, error) in [(0, 2, Errno::EOPNOTSUPP), (usize::MAX, 8, Errno::EOPNOTSUPP)] {
                assert_eq!(with(program, reads, input, place, flags), Err(error));
                assert_eq!(with(program, writes, output, place, flags), Err(error));
            }
            assert_eq!(with(program, reads, input, usize::MAX - 1, 0), Err(Errno::EINVAL));
            // The bytes before a bad address count.
            let bad = program.store(&[from, 10, 0x1000, 10].map(usize::to_le_bytes).concat());
            assert_eq!(program.call(SystemCall::WriteVectorAt, [file, bad, 2, 0]), Ok(10));
            assert_eq!(program.call(SystemCall::WriteVectorAt, [file, bad + 16, 1, 0]), Err(Errno::EFAULT));
            program.remove(b"/tmp/vectors\0");
        });
    }

    #[test]
    fn random_bytes_fill_the_buffer_and_stop_at_its_fault() {
        run(|program| {
            let place = program.place(20_000);
            assert_eq!(program.call(SystemCall::GetRandom, [place, 20_000, 0]), Ok(20_000));
            let bytes = program.read(place, 20_000);
            let mut words: Vec<&[u8]> = bytes.chunks(8).collect();
            words.sort();
            words.dedup();
            assert_eq!(words.len(), 2500, "no word comes twice");
            assert_eq!(program.call(SystemCall::GetRandom, [0x1000, 8, 0]), Err(Errno::EFAULT));
            let edge = DATA + crate::testing::LENGTH;
            let given = program.call(SystemCall::GetRandom, [edge - 4096, 100_000, 0]).unwrap();
            assert!(given > 0 && given <= 4096, "{given}");
            assert_eq!(program.call(SystemCall::GetRandom, [place, 8, 8]), Err(Errno::EINVAL));
        });
    }

    #[test]
    fn lengths_and_offsets_that_are_negative_are_refused() {
        run(|program| {
            let (reader, _) = program.pipe(0);
            assert_eq!(program.call(SystemCall::Read, [reader, DATA, 1 << 63]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::ReadAt, [reader, DATA, 8, usize::MAX]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::Read, [1 << 31, DATA, 8]), Err(Errno::EBADF));
            assert_eq!(program.call(SystemCall::Close, [1 << 32 | reader]), Ok(0), "only the lower half counts");
        });
    }
}
