//! How tests are written and judged.
//!
//! Every test runs in a process of its own, started by the suite with `--one NAME`: a panic, a fault or a hang is then
//! a failure of that test, and whatever the test leaves behind goes with its process. The suite waits no longer than
//! the limit and kills what has not ended by then. The next test begins when all processes of the one before have gone.

use alloc::boxed::Box;
use alloc::string::String;
use core::future::Future;
use core::pin::{Pin, pin};
use core::task::Poll;

use abi_unix::{Counter, SystemCall};
use cops::process::{Child, Command, Ending};
use cops::time::{Duration, Instant};
use cops::{Errno, println};

/// How long a test waits for what must happen. Nothing takes that long: it ends a hang, on however slow a host.
pub const LIMIT: Duration = Duration::from_secs(60);
/// How long a whole test may take, for the same reason.
const TEST_LIMIT: Duration = Duration::from_secs(600);

/// What a test ends with: nothing, or what was wrong.
pub type Outcome = Result<(), String>;

type Body = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A test.
pub struct Test {
    /// Its name, which is also how it is started alone.
    pub name: &'static str,
    /// Makes its coroutine.
    pub body: fn() -> Body,
}

/// Lists tests: `tests![module::function; …]`.
#[macro_export]
macro_rules! tests {
    ($($module:ident :: $function:ident;)*) => {
        &[$($crate::harness::Test {
            name: concat!(stringify!($module), "::", stringify!($function)),
            body: || alloc::boxed::Box::pin($module::$function()),
        }),*]
    };
}

/// Ends the test unless the condition holds.
#[macro_export]
macro_rules! check {
    ($condition:expr) => { $crate::check!($condition, "{}", stringify!($condition)) };
    ($condition:expr, $($format:tt)*) => {
        if !$condition {
            return Err(alloc::format!("{}:{}: {}", file!(), line!(), format_args!($($format)*)));
        }
    };
}

/// Ends the test unless both sides are equal.
#[macro_export]
macro_rules! check_eq {
    ($left:expr, $right:expr) => {
        match (&$left, &$right) {
            (left, right) => $crate::check!(left == right, "{} is {left:?}, not {right:?}", stringify!($left)),
        }
    };
}

/// The value of a result, or the end of the test.
#[macro_export]
macro_rules! must {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => {
                return Err(alloc::format!("{}:{}: {}: {error:?}", file!(), line!(), stringify!($result)));
            }
        }
    };
}

/// Runs a test in a process of its own; prints and tells whether it passed.
pub async fn run(test: &Test) -> bool {
    let start = Instant::now();
    let processes = counter(Counter::Processes);
    let mut verdict = match Command::new(OWN_PATH).argument("--one").argument(test.name).spawn() {
        Ok(child) => match wait_for_test(&child).await {
            Some(Ok(Ending::Exited(0))) => Ok(()),
            Some(Ok(ending)) => Err(alloc::format!("its process ended with {ending:?}")),
            Some(Err(error)) => Err(alloc::format!("its process could not be waited for: {error}")),
            None => Err(alloc::format!("it was still running after {} s", TEST_LIMIT.as_secs())),
        },
        Err(error) => Err(alloc::format!("its process could not be started: {error}")),
    };
    if verdict.is_err() && cops::process::number() == 1 {
        // What it has started and not ended must not be the next ones' trouble.
        // SAFETY: the call has no pointers.
        let _ = unsafe { cops::system::call!(Kill, -1i64, abi_unix::types::signal::KILL) };
    }
    let gone = match processes {
        Ok(processes) => returns_to(Counter::Processes, processes).await,
        Err(error) => Err(error),
    };
    verdict = verdict.and(gone.map_err(|reason| alloc::format!("it has left something behind: {reason}")));
    let took = start.elapsed().as_millis();
    match &verdict {
        Ok(()) => println!("test {} ... ok ({took} ms)", test.name),
        Err(reason) => println!("test {} ... FAILED ({took} ms): {reason}", test.name),
    }
    verdict.is_ok()
}

/// As [`wait`], but takes the statuses of orphans too: the suite is usually the machine's first program.
async fn wait_for_test(child: &Child) -> Option<cops::system::Result<Ending>> {
    let ended = async {
        loop {
            match cops::process::wait_any().await {
                Ok((number, ending)) if number == child.number() => return Ok(ending),
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
    };
    match cops::timeout(TEST_LIMIT, ended).await {
        Ok(ending) => Some(ending),
        Err(_) => {
            let _ = child.kill();
            let _ = cops::timeout(LIMIT, child.wait()).await;
            None
        }
    }
}

/// Where this program is.
pub const OWN_PATH: &str = "/bin/tests";

/// Waits for a process; after [`LIMIT`] it is killed and waited for, and the answer is `None`.
pub async fn wait(child: &Child) -> Option<cops::system::Result<Ending>> {
    match cops::timeout(LIMIT, child.wait()).await {
        Ok(ending) => Some(ending),
        Err(_) => {
            let _ = child.kill();
            let _ = cops::timeout(LIMIT, child.wait()).await;
            None
        }
    }
}

/// Makes a call as it is.
pub fn call(call: SystemCall, arguments: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the tests pass addresses of their own buffers or such that nobody can reach.
    abi_unix::errno::decode(unsafe { cops::system::syscall(call as usize, arguments) })
}

/// What the kernel says in the auxiliary vector; 0 if it says nothing.
pub fn told(key: u64) -> usize {
    cops::system::start::auxiliary_value(key).unwrap_or(0) as usize
}

/// Starts this program to do one of [`crate::acts`] in another process.
pub fn act(name: &str) -> cops::system::Result<Child> {
    Command::new(OWN_PATH).argument("--act").argument(name).spawn()
}

/// The same, and waits for its end.
pub async fn ending_of_act(name: &str) -> Result<Ending, String> {
    let child = must!(act(name));
    match wait(&child).await {
        Some(ending) => Ok(must!(ending)),
        None => Err(alloc::format!("the process for `{name}` did not end")),
    }
}

/// Polls a future once, without waiting for it.
pub async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    core::future::poll_fn(|context| match pin!(&mut *future).poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// One of the kernel's counters.
pub fn counter(counter: Counter) -> Result<u64, String> {
    Ok(must!(cops::system::system::counter(counter)))
}

/// Waits until a counter is back at (or below) a value, which the kernel's own coroutines bring it to.
///
/// Calls in flight are counted over all processes, and the harness has an alarm and a wait of its own, which come and
/// go.
pub async fn returns_to(which: Counter, value: u64) -> Outcome {
    let value = if which == Counter::CallsInFlight { value + 2 } else { value };
    let start = Instant::now();
    loop {
        let now = counter(which)?;
        if now <= value {
            return Ok(());
        }
        check!(start.elapsed() < LIMIT, "{} is {now} and was {value}", which.name());
        cops::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a counter is at a value or above.
pub async fn reaches(which: Counter, value: u64) -> Outcome {
    let start = Instant::now();
    loop {
        let now = counter(which)?;
        if now >= value {
            return Ok(());
        }
        check!(start.elapsed() < LIMIT, "{} is {now} and has not reached {value}", which.name());
        cops::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a condition holds that some process brings about; the test's own limit bounds it.
pub async fn until(mut condition: impl FnMut() -> cops::system::Result<bool>) -> Outcome {
    while !must!(condition()) {
        cops::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// Whether a result is one of these errors.
pub fn is_one_of<T>(result: &Result<T, Errno>, errors: &[Errno]) -> bool {
    result.as_ref().err().is_some_and(|error| errors.contains(error))
}
