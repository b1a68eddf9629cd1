//! The form and the execution of tests.
//!
//! Every test runs in a process of its own, started by the suite with `--one NAME`: a panic, a fault or a hang is then
//! a failure of that test, and its resources are freed with its process. The suite kills a test that has not ended at
//! its limit. The next test begins when all processes of the one before have gone.

use alloc::boxed::Box;
use alloc::string::String;
use core::future::Future;
use core::pin::{Pin, pin};
use core::task::Poll;

use abi_unix::trace::{PROCESS_WORDS, ProcessSnapshot};
use abi_unix::{Counter, SystemCall};
use cops::process::{Child, Command, Ending};
use cops::time::{Duration, Instant};
use cops::{Errno, println};

/// Longest wait of a test for an event. No event takes that long: it ends a hang, on however slow a host.
pub const LIMIT: Duration = Duration::from_secs(60);
/// Longest time of a whole test, for the same reason.
const TEST_LIMIT: Duration = Duration::from_secs(600);

/// The result of a test: the error is the failure.
pub type Outcome = Result<(), String>;

type Body = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A test.
pub struct Test {
    /// Name of the test, with which it can be started alone.
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

/// Unwraps a result, or ends the test with its error.
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

/// Runs a test in a process of its own; prints the result and returns whether it passed.
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
        // Processes that the test has left behind must not disturb later tests.
        // SAFETY: the call has no pointers.
        let _ = unsafe { cops::system::call!(Kill, -1i64, abi_unix::types::signal::KILL) };
    }
    let gone = match processes {
        Ok(processes) => returns_to(Counter::Processes, processes).await,
        Err(error) => Err(error),
    };
    verdict = verdict.and(gone.map_err(|reason| alloc::format!("it has left something behind: {reason}")));
    report(test, start, verdict)
}

/// Prints a test's result, and returns whether it passed.
pub fn report(test: &Test, start: Instant, verdict: Outcome) -> bool {
    let took = start.elapsed().as_millis();
    match &verdict {
        Ok(()) => println!("test {} ... ok ({took} ms)", test.name),
        Err(reason) => println!("test {} ... FAILED ({took} ms): {reason}", test.name),
    }
    verdict.is_ok()
}

/// Waits as [`wait`] does, but takes the statuses of orphans too: the suite is usually the machine's first program.
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

/// Path of this program.
pub const OWN_PATH: &str = "/bin/tests";

/// Waits for a process; at [`LIMIT`] it is killed and waited for, and the result is `None`.
pub async fn wait(child: &Child) -> Option<cops::system::Result<Ending>> {
    wait_at_most(child, LIMIT).await
}

/// Waits for a process; at the limit it is killed and waited for, and the result is `None`.
async fn wait_at_most(child: &Child, limit: Duration) -> Option<cops::system::Result<Ending>> {
    match cops::timeout(limit, child.wait()).await {
        Ok(ending) => Some(ending),
        Err(_) => {
            let _ = child.kill();
            let _ = cops::timeout(LIMIT, child.wait()).await;
            None
        }
    }
}

/// Makes a call directly.
pub fn call(call: SystemCall, arguments: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the tests pass addresses of their own buffers or unreachable ones.
    abi_unix::errno::decode(unsafe { cops::system::syscall(call as usize, arguments) })
}

/// Returns a value of the kernel's auxiliary vector; 0 if it has none.
pub fn told(key: u64) -> usize {
    cops::system::start::auxiliary_value(key).unwrap_or(0) as usize
}

/// Starts this program as another process with one of [`crate::acts`].
pub fn act(name: &str) -> cops::system::Result<Child> {
    Command::new(OWN_PATH).argument("--act").argument(name).spawn()
}

/// Starts an act and waits for its end.
pub async fn ending_of_act(name: &str) -> Result<Ending, String> {
    ending_of_long_act(name, LIMIT).await
}

/// Starts an act and waits for its end until a limit.
pub async fn ending_of_long_act(name: &str, limit: Duration) -> Result<Ending, String> {
    let child = must!(act(name));
    match wait_at_most(&child, limit).await {
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

/// Reads one of the kernel's counters.
pub fn counter(counter: Counter) -> Result<u64, String> {
    Ok(must!(cops::system::system::counter(counter)))
}

/// Returns the number of calls that this process has in flight.
pub fn calls_in_flight() -> Result<u64, String> {
    let mut words = [[0; PROCESS_WORDS]; 1];
    let own = cops::system::process::number();
    check_eq!(must!(cops::system::trace::processes(own - 1, &mut words)), 1);
    let process = ProcessSnapshot::from_words(words[0]);
    check_eq!(process.process, u64::from(own));
    Ok(process.calls_in_flight)
}

/// Waits until this process has no call in flight, at the begin of a test that counts exactly: the runtime's alarm for
/// the sleep before the test may not be over.
pub async fn no_call_is_in_flight() -> Outcome {
    let start = Instant::now();
    while calls_in_flight()? > 0 {
        check!(start.elapsed() < LIMIT, "{} calls are in flight at the begin", calls_in_flight()?);
        cops::yield_now().await;
    }
    Ok(())
}

/// Waits until this process has at most so many calls in flight, beside the runtime's alarm and the one that replaces
/// it.
pub async fn calls_in_flight_return_to(value: u64) -> Outcome {
    let start = Instant::now();
    loop {
        let now = calls_in_flight()?;
        if now <= value + 2 {
            return Ok(());
        }
        check!(start.elapsed() < LIMIT, "{now} calls are in flight, and there were {value}");
        cops::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a counter is back at (or below) a value, to which the kernel's own coroutines bring it.
///
/// Calls in flight are counted over all processes, and the harness has an alarm and a wait of its own, which come and
/// go: [`calls_in_flight`] counts a test's own.
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

/// Waits until a process brings a condition about; the test's own limit bounds the wait.
pub async fn until(mut condition: impl FnMut() -> cops::system::Result<bool>) -> Outcome {
    while !must!(condition()) {
        cops::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// Returns whether a result is one of these errors.
pub fn is_one_of<T>(result: &Result<T, Errno>, errors: &[Errno]) -> bool {
    result.as_ref().err().is_some_and(|error| errors.contains(error))
}
