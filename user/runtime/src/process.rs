//! Starting programs and waiting for their ends.

use core::ffi::c_char;

use abi_queue::Priority;
use abi_unix::SystemCall;
use abi_unix::types::signal;
use alloc::boxed::Box;
use alloc::ffi::CString;
use alloc::vec::Vec;

use crate::call::Operation;
use crate::file::c_string;
use unix::process::{Child as Which, StringList};
use unix::{Descriptor, Result};

pub use unix::process::{Ending, exit, number, parent};

/// What a new process's descriptor 0, 1 or 2 is.
#[derive(Debug, Default)]
enum Source {
    /// The same as here.
    #[default]
    Inherited,
    /// Nothing.
    Closed,
    /// This.
    Given(Descriptor),
}

impl Source {
    fn number(&self, inherited: i32) -> i32 {
        match self {
            Source::Inherited => inherited,
            Source::Closed => -1,
            Source::Given(descriptor) => descriptor.raw(),
        }
    }
}

/// A program to start, with its arguments and descriptors.
#[derive(Debug)]
pub struct Command {
    path: Result<CString>,
    arguments: Vec<Result<CString>>,
    environment: Vec<Result<CString>>,
    sources: [Source; 3],
    priority: Priority,
}

impl Command {
    /// The program at this path, with its path as first argument, our environment and our descriptors.
    pub fn new(path: &str) -> Command {
        Command {
            path: c_string(path),
            arguments: alloc::vec![c_string(path)],
            environment: unix::start::environment().map(|variable| Ok(variable.into())).collect(),
            sources: Default::default(),
            priority: Priority::DEFAULT,
        }
    }

    /// One more argument.
    pub fn argument(mut self, argument: &str) -> Command {
        self.arguments.push(c_string(argument));
        self
    }

    /// One more environment variable, `NAME=value`.
    pub fn variable(mut self, variable: &str) -> Command {
        self.environment.push(c_string(variable));
        self
    }

    /// What descriptor 0, 1 or 2 is to be.
    ///
    /// # Panics
    ///
    /// If the number is not 0, 1 or 2.
    pub fn descriptor(mut self, number: usize, descriptor: Descriptor) -> Command {
        self.sources[number] = Source::Given(descriptor);
        self
    }

    /// Without descriptor 0, 1 or 2.
    ///
    /// # Panics
    ///
    /// If the number is not 0, 1 or 2.
    pub fn without_descriptor(mut self, number: usize) -> Command {
        self.sources[number] = Source::Closed;
        self
    }

    /// The priority with which the process starts; afterwards it has that of its most important coroutine.
    pub fn priority(mut self, priority: Priority) -> Command {
        self.priority = priority;
        self
    }

    /// Starts it.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `EACCES`, `ENOEXEC`, `E2BIG`, `ENOMEM`, `EAGAIN`; `EINVAL` for a NUL in a string.
    pub fn spawn(self) -> Result<Child> {
        let path = self.path?;
        let arguments = self.arguments.into_iter().collect::<Result<Vec<_>>>()?;
        let environment = self.environment.into_iter().collect::<Result<Vec<_>>>()?;
        let pointers = |strings: &[CString]| -> Vec<*const c_char> {
            strings.iter().map(|string| string.as_ptr()).chain([core::ptr::null()]).collect()
        };
        let (argument_pointers, environment_pointers) = (pointers(&arguments), pointers(&environment));
        // SAFETY: the strings live to the end of this function.
        let lists = unsafe { (StringList::new(&argument_pointers), StringList::new(&environment_pointers)) };
        let (Some(argument_list), Some(environment_list)) = lists else { unreachable!("both lists end with NULL") };
        let descriptors = [0, 1, 2].map(|number| self.sources[number].number(number as i32));
        let process =
            unix::process::spawn(&path, argument_list, environment_list, descriptors, self.priority.number())?;
        Ok(Child { process })
    }
}

/// A process that was started here. Dropping this leaves it alone; its status is kept until somebody waits for it.
#[derive(Debug)]
pub struct Child {
    process: u32,
}

impl Child {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.process
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// `ECHILD` if somebody else has waited for it.
    ///
    /// # Cancellation
    ///
    /// A status that had been taken by then is lost.
    pub async fn wait(&self) -> Result<Ending> {
        let mut status = Box::new(0i32);
        let arguments = [Which::Process(self.process).to_argument(), &raw mut *status as usize, 0, 0];
        // SAFETY: the kernel writes to the box only.
        let (result, status) = unsafe { Operation::new(SystemCall::Wait, arguments, status) }.await;
        result.map(|_| Ending::from_status(*status))
    }

    /// Ends it with a kill signal.
    ///
    /// # Errors
    ///
    /// `ESRCH` if it has ended and been waited for.
    pub fn kill(&self) -> Result<()> {
        unix::process::kill(self.process, signal::KILL)
    }
}

/// Waits for whichever child ends next, and gives its number too. For programs that are the first of the machine: they
/// inherit the children of those that have ended.
///
/// # Errors
///
/// `ECHILD` if there is no child.
///
/// # Cancellation
///
/// A status that had been taken by then is lost.
pub async fn wait_any() -> Result<(u32, Ending)> {
    let mut status = Box::new(0i32);
    let arguments = [Which::Any.to_argument(), &raw mut *status as usize, 0, 0];
    // SAFETY: the kernel writes to the box only.
    let (result, status) = unsafe { Operation::new(SystemCall::Wait, arguments, status) }.await;
    result.map(|number| (number as u32, Ending::from_status(*status)))
}
