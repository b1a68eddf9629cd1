//! The nice values of many processes: those of a group, and those of a user (`setpriority`, `getpriority`).
//!
//! The processes are visited in steps, as by `kill`. Each one is a decision of its own: the call goes on behind one
//! that it may not change, and fails in the end.

use alloc::sync::Arc;

use abi_unix::types::niceness;
use abi_unix::{Act, Errno};

use crate::process::class::ClassAndNice;
use crate::process::table::Walk;
use crate::process::{Process, authority};
use crate::scheduling::steps;

/// Processes that a call on nice values is about.
pub(crate) struct NiceProcesses {
    walk: Walk,
    /// Those of the caller's user alone.
    are_of_the_user: bool,
}

impl NiceProcesses {
    /// Returns those of a group or a user with this number, of which 0 is the caller's. `EINVAL` for other kinds,
    /// `ESRCH` for other users: each user is user 0 to itself.
    pub(crate) fn of(caller: &Process, kind: u32, number: u32) -> Result<NiceProcesses, Errno> {
        match (kind, number) {
            (niceness::OF_GROUP, 0) => Ok(NiceProcesses::of_group(caller.group())),
            (niceness::OF_GROUP, group) => Ok(NiceProcesses::of_group(group)),
            (niceness::OF_USER, 0) => Ok(NiceProcesses { walk: Walk::above(0), are_of_the_user: true }),
            (niceness::OF_USER, _) => Err(Errno::ESRCH),
            _ => Err(Errno::EINVAL),
        }
    }

    fn of_group(group: u32) -> NiceProcesses {
        NiceProcesses { walk: Walk::of_group(group), are_of_the_user: false }
    }

    async fn next(&mut self, caller: &Process) -> Option<Arc<Process>> {
        loop {
            let process = self.walk.next_in_steps(caller).await?;
            if !self.are_of_the_user || caller.authority.is_of_the_user_of(&process.authority) {
                return Some(process);
            }
            steps::pause(caller).await;
        }
    }

    /// Performs `getpriority`: the answer for the most important of them. `ESRCH` if there are none.
    ///
    /// # Cancellation
    /// Dropping it has no effect.
    pub(crate) async fn get(mut self, caller: Arc<Process>) -> Result<usize, Errno> {
        let mut best = None;
        while let Some(process) = self.next(&caller).await {
            best = best.max(Some(answer(&process)));
            steps::pause(&*caller).await;
        }
        best.ok_or(Errno::ESRCH)
    }

    /// Performs `setpriority`. `ESRCH` if there are none; the last error if some could not be changed.
    ///
    /// # Cancellation
    /// Some have the value and others have not.
    pub(crate) async fn set(mut self, caller: Arc<Process>, nice: i32) -> Result<usize, Errno> {
        let mut result = Err(Errno::ESRCH);
        while let Some(process) = self.next(&caller).await {
            match (set(&caller, &process, nice), result) {
                (Ok(()), Err(Errno::ESRCH)) => result = Ok(0),
                (Ok(()), _) => {}
                (Err(error), _) => result = Err(error),
            }
            steps::pause(&*caller).await;
        }
        result
    }
}

/// Returns what `getpriority` answers: 20 for the nice value 0, and more for those that are more important.
pub(crate) fn answer(process: &Process) -> usize {
    (20 - i32::from(process.nice())) as usize
}

/// Sets the nice value of a process. `EPERM` if the caller may not, `EACCES` if it may not lower it.
pub(crate) fn set(caller: &Process, process: &Process, nice: i32) -> Result<(), Errno> {
    let nice = nice.clamp(niceness::LOWEST, niceness::HIGHEST) as i8;
    authority::permit_towards(caller, process, Act::Schedule)?;
    process.set_class_and_nice(|present| {
        if nice < present.nice && !caller.authority.permits(Act::ScheduleMore) {
            return Err(Errno::EACCES);
        }
        Ok(ClassAndNice { nice, ..present })
    })
}

#[cfg(test)]
mod tests {
    use abi_unix::{Errno, SystemCall};

    use crate::testing::{Program, run};

    const GROUP: usize = 1;
    const USER: usize = 2;

    #[test]
    fn groups_and_users_are_changed_as_far_as_the_caller_may() {
        run(|program| {
            let get = |program: &mut Program, kind, number| program.call(SystemCall::GetNice, [kind, number]);
            let set = |program: &mut Program, kind, number, nice: i32| {
                program.call(SystemCall::SetNice, [kind, number, nice as u32 as usize])
            };
            for (kind, number, error) in [
                (3, 0, Errno::EINVAL),
                (usize::MAX, 0, Errno::EINVAL),
                (GROUP, 99_999, Errno::ESRCH),
                (GROUP, usize::MAX, Errno::ESRCH),
                (USER, 1, Errno::ESRCH),
            ] {
                assert_eq!((get(program, kind, number), set(program, kind, number, 1)), (Err(error), Err(error)));
            }
            // The group of the first process has others.
            assert_eq!(program.call(SystemCall::SetProcessGroup, [0, 0]), Ok(0));
            let long = |program: &mut Program| program.sleep_ns(1_000_000_000_000);
            let (copy, other) = (program.fork(long).unwrap(), program.spawn(long).unwrap());
            let all = |program: &mut Program| [0, copy, other].map(|process| get(program, 0, process).unwrap());
            let group = program.call(SystemCall::GetProcessGroup, [0]).unwrap();
            // The user's processes are this one and its copy; what it has started is in the group.
            assert_eq!(set(program, USER, 0, 3), Ok(0));
            assert_eq!(all(program), [17, 17, 20]);
            assert_eq!(set(program, GROUP, group, 4), Ok(0));
            assert_eq!(all(program), [16, 16, 16]);
            assert_eq!(set(program, 0, copy, 9), Ok(0));
            assert_eq!((get(program, GROUP, 0), get(program, USER, 0)), (Ok(16), Ok(16)));
            assert_eq!(set(program, GROUP, 0, 6), Err(Errno::EACCES), "the copy's would become lower");
            assert_eq!(all(program), [14, 11, 14]);
            let last = program.fork(move |program| {
                assert_eq!(set(program, USER, 0, 12), Err(Errno::EPERM), "others are not below it");
                assert_eq!(get(program, 0, 0), Ok(8));
                assert_eq!(get(program, USER, 0), Ok(14));
            });
            let last = last.unwrap();
            assert_eq!(program.wait_for(last), Ok((last, 0)));
            assert_eq!(all(program), [14, 11, 14]);
            for process in [copy, other] {
                program.call(SystemCall::Kill, [process, 9]).unwrap();
                program.wait_for(process).unwrap();
            }
        });
    }
}
