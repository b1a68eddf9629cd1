//! Starting programs and waiting for their ends.
//!
//! ```no_run
//! use cops::process::{Command, Ending};
//!
//! # async fn example() -> Result<(), cops::Errno> {
//! let child = Command::new("/bin/ls").argument("-l").argument("/bin").spawn()?;
//! match child.wait().await? {
//!     Ending::Exited(status) => cops::println!("status {status}"),
//!     ending => cops::println!("{ending:?}"),
//! }
//! # Ok(())
//! # }
//! ```

use core::ffi::c_char;
use core::sync::atomic::{AtomicBool, Ordering};

use abi_queue::Priority;
use abi_unix::SystemCall;
use abi_unix::types::{WCONTINUED, WUNTRACED, signal};
use alloc::boxed::Box;
use alloc::ffi::CString;
use alloc::vec::Vec;

use crate::call::Operation;
use crate::file::c_string;
use unix::process::{Child as Which, StringList};
use unix::{Descriptor, Result};

pub use unix::process::{Change, Ending, number, parent};

// With the standard library its buffers are written, and the functions that wait for the end are called.
#[cfg(all(on_cops, feature = "std"))]
pub use std::process::exit;
#[cfg(not(all(on_cops, feature = "std")))]
pub use unix::process::exit;

/// Source of a new process's descriptor 0, 1 or 2.
#[derive(Debug, Default)]
enum Source {
    /// A duplicate of this process's descriptor.
    #[default]
    Inherited,
    /// No descriptor.
    Closed,
    /// A given descriptor.
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
    is_killed_on_drop: bool,
    arguments: Vec<Result<CString>>,
    environment: Vec<Result<CString>>,
    sources: [Source; 3],
    priority: Priority,
}

impl Command {
    /// Describes the program at this path, with its path as first argument, the caller's environment and descriptors.
    pub fn new(path: &str) -> Command {
        Command {
            path: c_string(path),
            is_killed_on_drop: false,
            arguments: alloc::vec![c_string(path)],
            environment: unix::start::environment().map(|variable| Ok(variable.into())).collect(),
            sources: Default::default(),
            priority: Priority::DEFAULT,
        }
    }

    /// Changes the first argument, by which a program learns its name.
    #[doc(alias = "arg0")]
    pub fn name(mut self, name: &str) -> Command {
        self.arguments[0] = c_string(name);
        self
    }

    /// Adds an argument.
    #[doc(alias = "arg")]
    pub fn argument(mut self, argument: &str) -> Command {
        self.arguments.push(c_string(argument));
        self
    }

    /// Adds an environment variable, `NAME=value`.
    #[doc(alias = "env")]
    pub fn variable(mut self, variable: &str) -> Command {
        self.environment.push(c_string(variable));
        self
    }

    /// Removes the caller's environment, and variables that were added.
    #[doc(alias = "env_clear")]
    pub fn clear_environment(mut self) -> Command {
        self.environment.clear();
        self
    }

    /// Ends the process with a kill signal when its [`Child`] is dropped before its end was waited for.
    pub fn kill_on_drop(mut self, is_killed: bool) -> Command {
        self.is_killed_on_drop = is_killed;
        self
    }

    /// Gives the new process a descriptor as its number 0, 1 or 2.
    ///
    /// # Panics
    ///
    /// If the number is not 0, 1 or 2.
    #[doc(alias("stdin", "stdout", "stderr"))]
    pub fn descriptor(mut self, number: usize, descriptor: Descriptor) -> Command {
        self.sources[number] = Source::Given(descriptor);
        self
    }

    /// Leaves descriptor 0, 1 or 2 closed.
    ///
    /// # Panics
    ///
    /// If the number is not 0, 1 or 2.
    pub fn without_descriptor(mut self, number: usize) -> Command {
        self.sources[number] = Source::Closed;
        self
    }

    /// Sets the priority with which the process starts; afterwards it has that of its most important coroutine.
    pub fn priority(mut self, priority: Priority) -> Command {
        self.priority = priority;
        self
    }

    /// Starts the program.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `EACCES`, `ENOEXEC`, `E2BIG`, `ENOMEM`, `EAGAIN`; `EINVAL` for a NUL in a string.
    #[doc(alias("posix_spawn", "fork", "exec"))]
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
        Ok(Child { process, is_killed_on_drop: AtomicBool::new(self.is_killed_on_drop) })
    }
}

/// A process that was started here. Dropping this leaves it alone, and its exit status is kept until it is waited for;
/// unless [`Command::kill_on_drop`] was chosen.
#[derive(Debug)]
pub struct Child {
    process: u32,
    is_killed_on_drop: AtomicBool,
}

impl Drop for Child {
    fn drop(&mut self) {
        if *self.is_killed_on_drop.get_mut() && self.kill().is_ok() {
            let process = self.process;
            // Its status is kept until this has waited for it.
            crate::spawn(async move { wait_for(Which::Process(process), 0).await }).detach();
        }
    }
}

impl Child {
    /// Returns the process number.
    #[doc(alias("id", "pid"))]
    pub fn number(&self) -> u32 {
        self.process
    }

    /// Waits for the end of the process.
    ///
    /// # Errors
    ///
    /// `ECHILD` if it has been waited for already.
    ///
    /// # Cancellation
    ///
    /// Weak. A status that had been taken by then is lost.
    #[doc(alias("waitpid", "wait4"))]
    pub async fn wait(&self) -> Result<Ending> {
        let result = wait_for(Which::Process(self.process), 0).await;
        self.is_killed_on_drop.store(false, Ordering::Relaxed);
        result.map(|(_, status)| Ending::from_status(status))
    }

    /// Waits until the process ends, or a signal stops it or lets it go on.
    ///
    /// # Errors
    ///
    /// `ECHILD` if it has been waited for already.
    ///
    /// # Cancellation
    ///
    /// Weak. A status that had been taken by then is lost.
    #[doc(alias("waitpid", "wait4", "WUNTRACED"))]
    pub async fn wait_for_change(&self) -> Result<Change> {
        let change = wait_for(Which::Process(self.process), WUNTRACED | WCONTINUED).await;
        let change = change.map(|(_, status)| Change::from_status(status));
        if !matches!(change, Ok(Change::Stopped(_) | Change::Continued)) {
            self.is_killed_on_drop.store(false, Ordering::Relaxed);
        }
        change
    }

    /// Ends the process with a kill signal.
    ///
    /// # Errors
    ///
    /// `ESRCH` if it has ended and been waited for.
    #[doc(alias = "start_kill")]
    pub fn kill(&self) -> Result<()> {
        unix::process::kill(self.process, signal::KILL)
    }
}

/// Waits for a child's end, and for other changes that the options name; returns its number and status.
async fn wait_for(child: Which, options: u32) -> Result<(u32, i32)> {
    let mut status = Box::new(0i32);
    let arguments = [child.to_argument(), &raw mut *status as usize, options as usize, 0];
    // SAFETY: the kernel writes to the box only.
    let (result, status) = unsafe { Operation::new(SystemCall::Wait, arguments, status) }.await;
    result.map(|number| (number as u32, *status))
}

/// Waits for the next child to end, and gives its number too.
///
/// # Errors
///
/// `ECHILD` if there is no child.
///
/// # Cancellation
///
/// Weak. A status that had been taken by then is lost.
#[doc(alias("waitpid", "wait4"))]
pub async fn wait_any() -> Result<(u32, Ending)> {
    wait_for(Which::Any, 0).await.map(|(number, status)| (number, Ending::from_status(status)))
}
