//! Classes of scheduling, as Linux's programs know them, in terms of the 64 priorities.
//!
//! A class decides the priority of a process while it publishes none: programs for Linux never do, and coroutines'
//! priorities, which are published, are finer than any class. Linux has a class for each thread; here it is the
//! process's, since the process competes as a whole.
//!
//! Real-time classes have the four priorities before those of usual programs. Within one of them processes take turns
//! at the tick, whether they asked for `SCHED_RR` or `SCHED_FIFO`.

use core::ops::RangeInclusive;

use abi_queue::{PRIORITIES, Priority};
use abi_unix::Errno;
use abi_unix::types::class as number;

/// Number of priorities for real-time classes, the most important ones.
const REAL_TIME_PRIORITIES: u32 = 4;

/// The class of a process with its real-time priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Class {
    class: u8,
    priority: u8,
    /// Children are of the usual class.
    ends_with_fork: bool,
}

impl Class {
    /// Decodes a class. `EINVAL` for an unknown one, and for a priority that it does not have.
    pub(crate) fn new(class: u32, priority: u32) -> Result<Class, Errno> {
        let ends_with_fork = class & number::RESET_ON_FORK != 0;
        let class = class & !number::RESET_ON_FORK;
        if !Class::priorities(class)?.contains(&priority) {
            return Err(Errno::EINVAL);
        }
        Ok(Class { class: class as u8, priority: priority as u8, ends_with_fork })
    }

    /// Returns the real-time priorities of a class. `EINVAL` for an unknown one.
    pub(crate) fn priorities(class: u32) -> Result<RangeInclusive<u32>, Errno> {
        match class {
            _ if number::is_real_time(class) => Ok(1..=number::GREATEST_PRIORITY),
            number::OTHER | number::BATCH | number::IDLE => Ok(0..=0),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Returns its number, with the flag for children.
    pub(crate) fn number(self) -> u32 {
        u32::from(self.class) | if self.ends_with_fork { number::RESET_ON_FORK } else { 0 }
    }

    /// Returns its real-time priority.
    pub(crate) fn priority(self) -> u8 {
        self.priority
    }

    /// Returns whether the class has real-time priorities.
    fn is_real_time(self) -> bool {
        number::is_real_time(self.class.into())
    }

    /// Returns the priority that the class stands for; `None` if the nice value decides.
    pub(crate) fn stands_for(self) -> Option<Priority> {
        match u32::from(self.class) {
            // The last one is kept for used-up budgets.
            number::IDLE => Some(Priority::saturating(u64::from(Priority::LOWEST.number()) - 1)),
            class if number::is_real_time(class) => {
                let below = number::GREATEST_PRIORITY - u32::from(self.priority);
                Some(Priority::saturating((below * REAL_TIME_PRIORITIES / number::GREATEST_PRIORITY).into()))
            }
            _ => None,
        }
    }

    /// Returns whether a process that has this class takes more of the machine with another one.
    pub(crate) fn is_less_than(self, other: Class) -> bool {
        match u32::from(other.class) {
            new if number::is_real_time(new) => other.class != self.class || other.priority > self.priority,
            number::IDLE => false,
            _ => u32::from(self.class) == number::IDLE,
        }
    }

    /// Returns whether children of a process with this class are of the usual one.
    pub(crate) fn ends_with_fork(self) -> bool {
        self.ends_with_fork
    }
}

/// Class and nice value of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClassAndNice {
    pub(crate) class: Class,
    pub(crate) nice: i8,
}

impl ClassAndNice {
    /// Returns the priority of a process that was started with `base`: each step of the nice value up is a priority
    /// further down from that, and five steps down are one further up, since there are fewer.
    pub(crate) fn priority(self, base: Priority) -> Priority {
        let (base, nice) = (i32::from(base.number()), i32::from(self.nice));
        let number = if nice < 0 { base - (4 - nice) / 5 } else { base + nice };
        self.class.stands_for().unwrap_or_else(|| Priority::saturating(number.max(0) as u64))
    }

    /// Returns that of a child, which `SCHED_RESET_ON_FORK` makes no more important than usual programs, and no less
    /// unimportant than its parent.
    pub(crate) fn of_a_child(self) -> ClassAndNice {
        let ClassAndNice { class, nice } = self;
        match class.ends_with_fork {
            false => self,
            true if class.is_real_time() => ClassAndNice::default(),
            true => ClassAndNice { class: Class { ends_with_fork: false, ..class }, nice: nice.max(0) },
        }
    }

    /// Returns that of a child with a priority of its own, which real-time classes do not replace.
    pub(crate) fn with_own_priority(self) -> ClassAndNice {
        let class = if self.class.is_real_time() { Class::default() } else { self.class };
        ClassAndNice { class, nice: 0 }
    }
}

/// Priorities that a process has inherited from waiters for its locks, with the number of each.
#[derive(Debug)]
pub(crate) struct Inherited([u32; PRIORITIES]);

impl Default for Inherited {
    fn default() -> Inherited {
        Inherited([0; PRIORITIES])
    }
}

impl Inherited {
    /// Adds one.
    pub(crate) fn add(&mut self, priority: Priority) {
        self.0[usize::from(priority.number())] += 1;
    }

    /// Removes one that was added.
    pub(crate) fn remove(&mut self, priority: Priority) {
        self.0[usize::from(priority.number())] -= 1;
    }

    /// Returns the most important one.
    fn best(&self) -> Option<Priority> {
        self.0.iter().position(|count| *count > 0).map(|number| Priority::saturating(number as u64))
    }
}

/// The rank of a process, which decides its priority while it publishes none.
#[derive(Debug, Default)]
pub(crate) struct ProcessRank {
    pub(crate) own: ClassAndNice,
    pub(crate) inherited: Inherited,
}

impl ProcessRank {
    /// Returns the priority of a process that was started with `base`.
    pub(crate) fn priority(&self, base: Priority) -> Priority {
        let own = self.own.priority(base);
        self.inherited.best().filter(|best| best.is_more_important_than(own)).unwrap_or(own)
    }
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::testing::{Program, run};

    #[test]
    fn classes_have_their_priorities_and_stand_for_ours() {
        for class in [4, 6, 7, 1000, u32::MAX] {
            assert_eq!(Class::new(class, 0), Err(Errno::EINVAL), "{class}");
        }
        for (class, priority) in [(0, 1), (3, 1), (5, 99), (1, 0), (1, 100), (2, 0), (2, u32::MAX)] {
            assert_eq!(Class::new(class, priority), Err(Errno::EINVAL), "{class} {priority}");
        }
        let stands_for = |class, priority| Class::new(class, priority).unwrap().stands_for().map(Priority::number);
        assert_eq!((stands_for(0, 0), stands_for(3, 0), stands_for(5, 0)), (None, None, Some(62)));
        let all: Vec<_> = (1..=99).rev().map(|priority| stands_for(1, priority).unwrap()).collect();
        assert!(all.is_sorted() && all[0] == 0 && all[98] == 3, "{all:?}");
        for class in [0, 3, 5, 5 | number::RESET_ON_FORK] {
            let class = Class::new(class, 0).unwrap();
            assert_eq!(Class::new(class.number(), 0), Ok(class));
        }
    }

    #[test]
    fn children_are_of_their_parent_s_rank_or_of_a_usual_one() {
        let rank = |class: u32, priority, nice| ClassAndNice { class: Class::new(class, priority).unwrap(), nice };
        let flag = number::RESET_ON_FORK;
        for (parent, child) in [
            (rank(number::FIFO, 7, -5), rank(number::FIFO, 7, -5)),
            (rank(number::FIFO | flag, 7, 5), rank(number::OTHER, 0, 0)),
            (rank(number::OTHER | flag, 0, -5), rank(number::OTHER, 0, 0)),
            (rank(number::BATCH | flag, 0, 5), rank(number::BATCH, 0, 5)),
            (rank(number::IDLE | flag, 0, 19), rank(number::IDLE, 0, 19)),
        ] {
            assert_eq!(parent.of_a_child(), child);
        }
    }

    #[test]
    fn a_process_makes_itself_less_important_and_its_children_are_alike() {
        run(|program| {
            let set = |program: &mut Program, id: usize, class: u32, priority: i32| {
                let place = program.store(&priority.to_le_bytes());
                program.call(SystemCall::SetClass, [id, class as usize, place])
            };
            let get = |program: &mut Program, id: usize| program.call(SystemCall::GetClass, [id]);
            assert_eq!(get(program, 0), Ok(0));
            for (id, class, priority, error) in [
                (0, 9, 0, Errno::EINVAL),
                (0, 0, 1, Errno::EINVAL),
                (0, 1, 100, Errno::EINVAL),
                (0, u32::MAX, 0, Errno::EINVAL),
                (0, 1, 1, Errno::EPERM),
                (1, 5, 0, Errno::EPERM),
                (9999, 5, 0, Errno::ESRCH),
                (usize::MAX, 5, 0, Errno::EINVAL),
            ] {
                assert_eq!(set(program, id, class, priority), Err(error), "{id} {class} {priority}");
            }
            assert_eq!(program.call(SystemCall::SetClass, [0, 5, 0]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::SetClass, [0, 5, 0x1000]), Err(Errno::EFAULT));
            assert_eq!((set(program, 0, number::BATCH, 0), get(program, 0)), (Ok(0), Ok(3)));
            assert_eq!((set(program, 0, number::IDLE, 0), get(program, 0)), (Ok(0), Ok(5)));
            assert_eq!(program.process().default_priority().number(), 62);
            // The nice value is kept, and counts for another class.
            assert_eq!(program.call(SystemCall::SetNice, [0, 0, 1]), Ok(0));
            assert_eq!(program.process().default_priority().number(), 62);
            let copy = program.fork(move |program| {
                assert_eq!(get(program, 0), Ok(5));
                assert_eq!(set(program, 0, number::OTHER, 0), Err(Errno::EPERM));
                let flag = number::RESET_ON_FORK;
                assert_eq!(set(program, 0, number::IDLE | flag, 0), Ok(0));
                assert_eq!(set(program, 0, number::IDLE, 0), Err(Errno::EPERM), "the flag stays");
                let child = program.fork(move |program| {
                    assert_eq!(get(program, 0), Ok(5), "the flag frees nobody");
                    assert_eq!(program.call(SystemCall::GetNice, [0, 0]), Ok(19));
                    assert_eq!(set(program, 0, number::OTHER, 0), Err(Errno::EPERM));
                });
                let child = child.unwrap();
                assert_eq!(program.wait_for(child), Ok((child, 0)));
            });
            let copy = copy.unwrap();
            assert_eq!(program.wait_for(copy), Ok((copy, 0)));
            let child = program.spawn(move |program| assert_eq!(get(program, 0), Ok(5))).unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            let place = program.place(16);
            assert_eq!(program.call(SystemCall::GetClassPriority, [0, place]), Ok(0));
            assert_eq!(program.read(place, 4), [0; 4]);
            assert_eq!(program.call(SystemCall::GetClassPriority, [0, 0]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::SetClassPriority, [0, place]), Ok(0));
            assert_eq!(program.call(SystemCall::SetClassPriority, [0, 0]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::GetSlice, [0, place]), Ok(0));
            assert_eq!((program.read_u64(place), program.read_u64(place + 8)), (0, crate::time::SLICE_NS));
            for (class, least, greatest) in [(0, 0, 0), (1, 1, 99), (2, 1, 99), (3, 0, 0), (5, 0, 0)] {
                assert_eq!(program.call(SystemCall::LeastClassPriority, [class]), Ok(least));
                assert_eq!(program.call(SystemCall::GreatestClassPriority, [class]), Ok(greatest));
            }
            assert_eq!(program.call(SystemCall::GreatestClassPriority, [4]), Err(Errno::EINVAL));
            assert_eq!(program.call(SystemCall::LeastClassPriority, [usize::MAX]), Err(Errno::EINVAL));
        });
    }
}
