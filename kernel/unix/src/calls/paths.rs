//! Paths of calls, read and followed: in steps if they are long.
//!
//! The function of such a call checks its other arguments and reads its paths; then [`follow`] acts on them. An act
//! changes nothing before its paths have been followed to their ends. If that is more than the work of a step
//! ([`Halt::Later`]), the act is tried again later, from where the paths were left: with the same arguments, which it
//! reads again. It can keep more than that between two attempts, as a rename does.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;

use abi_unix::{Errno, types};

use crate::calls::call::{ArgumentSource, Call, Decoded, Decoding, admitted, kept_steps};
use crate::files::mounts::{Halt, Path};
use crate::files::remains;
use crate::process::Process;
use crate::scheduling::steps;

/// The act of a call on so many paths.
pub(super) trait Act<const COUNT: usize>:
    FnMut(&Call<'_>, &mut [Path; COUNT]) -> Result<usize, Halt> + Send + 'static
{
}

impl<const COUNT: usize, F> Act<COUNT> for F where
    F: FnMut(&Call<'_>, &mut [Path; COUNT]) -> Result<usize, Halt> + Send + 'static
{
}

/// Effect of a call on files as a whole.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// No file is gone by it.
    Keeps,
    /// Files may be gone then, whose pages it frees in steps before it is done.
    Frees,
}

impl Effect {
    fn leaves_remains(self) -> bool {
        self == Effect::Frees && remains::are_left()
    }
}

/// Reads a path from the arguments of a call: a directory's descriptor, or `AT_FDCWD`, and the address of the path.
pub(super) fn read_path(call: &Call<'_>, directory: usize, path: usize) -> Result<Path, Errno> {
    path_from(call.process(), call.signed(directory), call.process().copy_in_path(call.address(path))?)
}

/// Reads a path that begins in the working directory.
pub(super) fn read_path_from_here(call: &Call<'_>, path: usize) -> Result<Path, Errno> {
    path_from(call.process(), types::AT_FDCWD, call.process().copy_in_path(call.address(path))?)
}

/// Reads two paths from such pairs of arguments. Both are read before a directory is looked at, as on Linux.
pub(super) fn read_two_paths(
    call: &Call<'_>,
    first: (usize, usize),
    second: (usize, usize),
) -> Result<[Path; 2], Errno> {
    let process = call.process();
    let old = process.copy_in_path(call.address(first.1))?;
    let new = process.copy_in_path(call.address(second.1))?;
    Ok([path_from(process, call.signed(first.0), old)?, path_from(process, call.signed(second.0), new)?])
}

/// Returns a path with the place from which it begins.
pub(super) fn path_from(process: &Process, directory: i32, path: Vec<u8>) -> Result<Path, Errno> {
    let place = || {
        if directory == types::AT_FDCWD {
            return Ok(process.directory.lock().clone());
        }
        let number = usize::try_from(directory).map_err(|_| Errno::EBADF)?;
        let file = process.descriptors.lock().get(number)?.clone();
        file.object().directory()
    };
    Path::from_directory(place, path, process.id).map(|path| path.paid_by(&process.account).seen_by(process.whom()))
}

/// Performs a call on paths.
#[inline(always)]
pub(super) fn follow<const COUNT: usize>(
    call: &Call<'_>,
    mut paths: [Path; COUNT],
    effect: Effect,
    mut act: impl Act<COUNT>,
) -> Decoding {
    match act(call, &mut paths) {
        Ok(value) if !effect.leaves_remains() => Ok(value.into()),
        Err(Halt::Failed(error)) if !effect.leaves_remains() => Err(error),
        attempt => Ok(go_on(call, paths, effect, act, attempt)),
    }
}

/// Performs a call on a path whose act results in more than a number: returns that, or else the rest of the call.
#[inline(always)]
pub(super) fn follow_to<R: Send + 'static>(
    call: &Call<'_>,
    path: Path,
    effect: Effect,
    mut act: impl FnMut(&Call<'_>, &mut [Path; 1]) -> Result<R, Halt> + Send + 'static,
) -> Result<Result<R, RestOf<R>>, Errno> {
    let mut paths = [path];
    match act(call, &mut paths) {
        Ok(value) if !effect.leaves_remains() => Ok(Ok(value)),
        Err(Halt::Failed(error)) if !effect.leaves_remains() => Err(error),
        attempt => Ok(Err(rest_of(call, paths, effect, act, attempt))),
    }
}

/// The rest of a call on a path.
pub(super) type RestOf<R> = Pin<Box<dyn Future<Output = Result<R, Errno>> + Send>>;

/// Returns the rest of an admitted call whose first attempt has ended so.
#[cold]
#[inline(never)]
fn rest_of<R: Send + 'static>(
    call: &Call<'_>,
    paths: [Path; 1],
    effect: Effect,
    act: impl FnMut(&Call<'_>, &mut [Path; 1]) -> Result<R, Halt> + Send + 'static,
    attempt: Result<R, Halt>,
) -> RestOf<R> {
    admitted(rest(call, paths, effect, act, attempt))
}

/// Performs the rest of a call whose first attempt has ended so.
#[cold]
#[inline(never)]
fn go_on<const COUNT: usize>(
    call: &Call<'_>,
    paths: [Path; COUNT],
    effect: Effect,
    act: impl Act<COUNT>,
    attempt: Result<usize, Halt>,
) -> Decoded {
    kept_steps(call.number, rest(call, paths, effect, act, attempt))
}

/// Goes on with a call until its paths have been followed and its act is done.
fn rest<R, A, const COUNT: usize>(
    call: &Call<'_>,
    mut paths: [Path; COUNT],
    effect: Effect,
    mut act: A,
    mut attempt: Result<R, Halt>,
) -> impl Future<Output = Result<R, Errno>> + Send + use<R, A, COUNT>
where
    R: Send + 'static,
    A: FnMut(&Call<'_>, &mut [Path; COUNT]) -> Result<R, Halt> + Send + 'static,
{
    let (worker, number) = (Arc::clone(call.worker), call.number);
    let arguments: [u64; 6] = core::array::from_fn(|argument| call.word(argument) as u64);
    async move {
        let result = loop {
            // An attempt is a step.
            steps::pause(&worker.process).await;
            for path in &mut paths {
                path.run_errand().await;
            }
            match attempt {
                Ok(value) => break Ok(value),
                Err(Halt::Failed(error)) => break Err(error),
                Err(Halt::Later) => {}
            }
            attempt = act(&Call::new(&worker, number, ArgumentSource::Request(&arguments)), &mut paths);
        };
        if effect.leaves_remains() {
            remains::free_for(&worker.process).await;
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;
    use abi_unix::types::open as how;

    use super::*;
    use crate::testing::{Program, run};

    const HERE: usize = types::AT_FDCWD as usize;

    fn text(program: &mut Program, text: &str) -> usize {
        program.store(format!("{text}\0").as_bytes())
    }

    /// Makes `/tmp/w/0` to `/tmp/w/4`: links through hundreds of components, each to the next one, the last to the
    /// directory `/tmp/w` itself.
    fn wind(program: &mut Program) {
        let directory = text(program, "/tmp/w");
        program.call(SystemCall::MakeDirectory, [HERE, directory, 0o755]).unwrap();
        for link in 0..5 {
            let next = if link < 4 { format!("{}", link + 1) } else { String::from(".") };
            let (target, name) = ("./../w/".repeat(200) + &next, format!("/tmp/w/{link}"));
            let (target, name) = (text(program, &target), text(program, &name));
            program.call(SystemCall::SymbolicLink, [target, HERE, name]).unwrap();
        }
    }

    fn unwind(program: &mut Program) {
        for link in 0..5 {
            let name = text(program, &format!("/tmp/w/{link}"));
            program.call(SystemCall::Unlink, [HERE, name, 0]).unwrap();
        }
        let directory = text(program, "/tmp/w");
        program.call(SystemCall::Unlink, [HERE, directory, types::AT_REMOVEDIR as usize]).unwrap();
    }

    /// Each call on paths does with a path of thousands of components as with a short one, and fails as with one.
    #[test]
    fn long_paths_are_followed_to_their_end() {
        run(|program| {
            wind(program);
            let through = |program: &mut Program, name: &str| text(program, &format!("/tmp/w/0/{name}"));
            let status = program.place(256);
            let [directory, missing, below] = ["d", "missing", "missing/x"].map(|name| through(program, name));
            assert_eq!(program.call(SystemCall::MakeDirectory, [HERE, directory, 0o755]), Ok(0));
            assert_eq!(program.call(SystemCall::MakeDirectory, [HERE, directory, 0o755]), Err(Errno::EEXIST));
            assert_eq!(program.call(SystemCall::MakeDirectory, [HERE, below, 0o755]), Err(Errno::ENOENT));
            let file = through(program, "d/file");
            let flags = (how::CREAT | how::RDWR) as usize;
            let descriptor = program.call(SystemCall::Open, [HERE, file, flags, 0o644]).unwrap();
            assert_eq!(program.write_to(descriptor, b"text"), Ok(4));
            program.close(descriptor).unwrap();
            assert_eq!(program.call(SystemCall::Open, [HERE, missing, 0, 0]), Err(Errno::ENOENT));
            assert_eq!(program.call(SystemCall::StatusAt, [HERE, file, status, 0]), Ok(0));
            assert_eq!(program.call(SystemCall::StatusAt, [HERE, missing, status, 0]), Err(Errno::ENOENT));
            assert_eq!(program.call(SystemCall::StatusAt, [HERE, file, 0x1000, 0]), Err(Errno::EFAULT));
            assert_eq!(program.call(SystemCall::ExtendedStatus, [HERE, file, 0, 0, status]), Ok(0));
            assert_eq!(program.call(SystemCall::Access, [HERE, file, 2]), Ok(0));
            assert_eq!(program.call(SystemCall::Access, [HERE, file, 1]), Err(Errno::EACCES));
            assert_eq!(program.call(SystemCall::ChangeModeAt, [HERE, file, 0o755]), Ok(0));
            assert_eq!(program.call(SystemCall::Access, [HERE, file, 1]), Ok(0));
            assert_eq!(program.call(SystemCall::ChangeOwnerAt, [HERE, file, 0, 0]), Ok(0));
            assert_eq!(program.call(SystemCall::ChangeOwnerAt, [HERE, file, 1, 0]), Ok(0));
            assert_eq!(program.call(SystemCall::SetTimes, [HERE, file, 0, 0]), Ok(0));
            assert_eq!(program.call(SystemCall::TruncateAt, [file, 2]), Ok(0));
            assert_eq!(program.call(SystemCall::TruncateAt, [directory, 2]), Err(Errno::EISDIR));
            assert_eq!(program.call(SystemCall::FileSystemAt, [file, status]), Ok(0));
            let [link, other, third] = ["link", "d/other", "d/third"].map(|name| through(program, name));
            let target = text(program, "d/file");
            assert_eq!(program.call(SystemCall::SymbolicLink, [target, HERE, link]), Ok(0));
            assert_eq!(program.call(SystemCall::ReadLink, [HERE, link, status, 3]), Ok(3));
            assert_eq!(program.call(SystemCall::ReadLink, [HERE, file, status, 3]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::Link, [HERE, file, HERE, other, 0]), Ok(0));
            assert_eq!(program.call(SystemCall::Link, [HERE, file, HERE, other, 0]), Err(Errno::EEXIST));
            assert_eq!(program.call(SystemCall::Rename, [HERE, other, HERE, third, 0]), Ok(0));
            assert_eq!(program.call(SystemCall::Rename, [HERE, other, HERE, third, 0]), Err(Errno::ENOENT));
            let elsewhere = text(program, "/proc/version");
            assert_eq!(program.call(SystemCall::Rename, [HERE, third, HERE, elsewhere, 0]), Err(Errno::EXDEV));
            assert_eq!(program.call(SystemCall::ChangeDirectory, [file]), Err(Errno::ENOTDIR));
            assert_eq!(program.call(SystemCall::ChangeDirectory, [directory]), Ok(0));
            let here = text(program, "third");
            assert_eq!(program.call(SystemCall::StatusAt, [HERE, here, status, 0]), Ok(0));
            let root = text(program, "/");
            assert_eq!(program.call(SystemCall::ChangeDirectory, [root]), Ok(0));
            for gone in [link, file, third] {
                assert_eq!(program.call(SystemCall::Unlink, [HERE, gone, 0]), Ok(0));
                assert_eq!(program.call(SystemCall::Unlink, [HERE, gone, 0]), Err(Errno::ENOENT));
            }
            assert_eq!(program.call(SystemCall::Unlink, [HERE, directory, 0]), Err(Errno::EISDIR));
            assert_eq!(program.call(SystemCall::Unlink, [HERE, directory, types::AT_REMOVEDIR as usize]), Ok(0));
            unwind(program);
        });
    }

    /// Links are counted over all steps, and a path that links make too long is refused.
    #[test]
    fn limits_of_paths_hold_over_all_steps() {
        run(|program| {
            wind(program);
            let status = program.place(256);
            let look = |program: &mut Program, path: &str| {
                let path = text(program, path);
                program.call(SystemCall::StatusAt, [HERE, path, status, 0])
            };
            // Each `0` follows five links.
            assert_eq!(look(program, &format!("/tmp/w/{}", "0/".repeat(8))), Ok(0));
            assert_eq!(look(program, &format!("/tmp/w/{}", "0/".repeat(9))), Err(Errno::ELOOP));
            for (path, error) in [("0/".repeat(8) + "none/x", Errno::ENOENT), ("0/0/0/".repeat(9), Errno::ELOOP)] {
                assert_eq!(look(program, &format!("/tmp/w/{path}")), Err(error));
            }
            let proc = format!("/proc/{}version", "self/../".repeat(30));
            assert_eq!(look(program, &proc), Ok(0), "links of generated files");
            assert_eq!(look(program, &format!("/proc/{}version", "self/../".repeat(41))), Err(Errno::ELOOP));
            assert_eq!(look(program, &format!("/proc/{}version", "./".repeat(1000))), Ok(0));
            // Each link puts its target in front of the rest, which stays as long.
            for link in 0..5 {
                let (target, name) = (format!("l{}/{}", link + 1, "./".repeat(2000)), format!("/tmp/w/l{link}"));
                let (target, name) = (text(program, &target), text(program, &name));
                program.call(SystemCall::SymbolicLink, [target, HERE, name]).unwrap();
            }
            assert_eq!(look(program, "/tmp/w/l3/x"), Err(Errno::ENOENT), "its end is missing");
            assert_eq!(look(program, "/tmp/w/l2/x"), Err(Errno::ELOOP));
            for link in 0..5 {
                let name = text(program, &format!("/tmp/w/l{link}"));
                program.call(SystemCall::Unlink, [HERE, name, 0]).unwrap();
            }
            unwind(program);
        });
    }

    /// Calls that are still on their way when their process ends have done nothing, and hold nothing.
    #[test]
    fn processes_end_in_the_middle_of_a_path() {
        run(|program| {
            wind(program);
            let through = |program: &mut Program, name: &str| text(program, &format!("/tmp/w/0/{name}"));
            let (old, new, status) = (through(program, "old"), through(program, "new"), program.place(256));
            assert_eq!(program.call(SystemCall::MakeDirectory, [HERE, old, 0o755]), Ok(0));
            for (call, arguments) in [
                (SystemCall::StatusAt, [HERE, old, status, 0, 0]),
                (SystemCall::Rename, [HERE, old, HERE, new, 0]),
                (SystemCall::Unlink, [HERE, old, types::AT_REMOVEDIR as usize, 0, 0]),
                (SystemCall::MakeDirectory, [HERE, new, 0o755, 0, 0]),
            ] {
                let child = program.fork(move |program| {
                    assert_eq!(program.submit(call, arguments, 1), None, "{call:?}");
                    assert!(program.completions().is_empty(), "it is in flight");
                });
                let child = child.unwrap();
                assert_eq!(program.wait_for(child), Ok((child, 0)));
            }
            assert_eq!(program.call(SystemCall::StatusAt, [HERE, new, status, 0]), Err(Errno::ENOENT));
            assert_eq!(program.call(SystemCall::Unlink, [HERE, old, types::AT_REMOVEDIR as usize]), Ok(0));
            unwind(program);
            assert_eq!(program.process().account.used(crate::process::accounts::Resource::Files), 0);
        });
    }
}
