//! The calls on processes: starting, waiting, ending, groups, limits and capabilities.

use abi_unix::types;
use abi_unix::{Act, Errno};

use crate::asynchronous::operation::Operation;
use crate::calls::call::{Call, Decoding, Pause, admitted, kept_steps};
use crate::process::{self, Children, Ending, authority, limits, program};

#[inline(never)]
pub(super) fn spawn(call: Call<'_>) -> Decoding {
    let process = call.admitted()?.clone();
    let (path, arguments, environment) = (call.address(0), call.address(1), call.address(2));
    let work = program::spawn(process, path, arguments, environment, call.address(3), call.word(4));
    Ok(Operation::Long(call.number, admitted(work)).into())
}

#[inline(never)]
pub(super) fn execute(call: Call<'_>) -> Decoding {
    call.admitted()?;
    Ok(Pause::Execute([call.address(0), call.address(1), call.address(2)]).into())
}

#[inline(never)]
pub(super) fn exit(call: Call<'_>) -> Decoding {
    call.process().note_exit(call.worker.index(), call.word(0) as u8);
    Ok(Pause::Leave.into())
}

#[inline(never)]
pub(super) fn exit_group(call: Call<'_>) -> Decoding {
    call.process().end(Ending::Exited(call.word(0) as u8));
    Ok(Pause::Leave.into())
}

#[inline(never)]
pub(super) fn wait(call: Call<'_>) -> Decoding {
    let process = call.process();
    let which = match call.signed(0) {
        -1 => Children::Any,
        0 => Children::Group(process.group()),
        id if id > 0 => Children::One(id as u32),
        group => Children::Group(group.unsigned_abs()),
    };
    let options = call.unsigned(2);
    if options & !types::WNOHANG != 0 {
        return Err(Errno::EINVAL);
    }
    let (parent, no_wait) = (process.id, options & types::WNOHANG != 0);
    Ok(Operation::WaitChild { parent, which, status: call.address(1), no_wait, usage: call.address(3) }.into())
}

#[inline(never)]
pub(super) fn kill(call: Call<'_>) -> Decoding {
    let (target, signal) = (call.signed(0), call.unsigned(1));
    if signal >= types::signal::LIMIT {
        return Err(Errno::EINVAL);
    }
    if target > 0 {
        return process::signal_one(call.process(), target as u32, signal).map(Into::into);
    }
    let caller = call.process().clone();
    Ok(kept_steps(call.number, async move {
        match target {
            0 => process::signal_group(&caller, caller.group(), signal).await,
            -1 => process::signal_everybody(&caller, signal).await,
            id => process::signal_group(&caller, id.unsigned_abs(), signal).await,
        }
        .map(|()| 0)
    }))
}

#[inline(never)]
pub(super) fn set_group(call: Call<'_>) -> Decoding {
    process::set_group(call.process(), call.signed(0), call.signed(1)).map(Into::into)
}

#[inline(never)]
pub(super) fn get_group(call: Call<'_>) -> Decoding {
    let group = match call.signed(0) {
        0 => call.process().group(),
        id => process::find(u32::try_from(id).map_err(|_| Errno::ESRCH)?).ok_or(Errno::ESRCH)?.group(),
    };
    Ok((group as usize).into())
}

#[inline(never)]
pub(super) fn limit(call: Call<'_>) -> Decoding {
    let (id, which) = (call.signed(0), call.unsigned(1));
    limits::call(call.process(), id, which, call.address(2), call.address(3)).map(Into::into)
}

#[inline(never)]
pub(super) fn get_capabilities(call: Call<'_>) -> Decoding {
    authority::get(call.process(), call.address(0), call.address(1)).map(Into::into)
}

#[inline(never)]
pub(super) fn set_capabilities(call: Call<'_>) -> Decoding {
    authority::set(call.process(), call.address(0), call.address(1)).map(Into::into)
}

#[inline(never)]
pub(super) fn reboot(call: Call<'_>) -> Decoding {
    authority::permit(call.process(), Act::EndMachine)?;
    if call.unsigned(0) != types::reboot::MAGIC1 || call.unsigned(1) != types::reboot::MAGIC2 {
        return Err(Errno::EINVAL);
    }
    match call.unsigned(2) {
        types::reboot::POWER_OFF | types::reboot::HALT => crate::power_off(Ending::Exited(0)),
        types::reboot::RESTART => crate::restart(),
        _ => Err(Errno::EINVAL),
    }
}
