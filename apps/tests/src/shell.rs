//! The shell: its language by `shell -c`, and its lines with keys that `TIOCSTI` presses.

use abi_unix::types::signal;
use alloc::string::String;
use alloc::vec::Vec;
use cops::process::{Command, Ending};
use cops::select::join;
use cops::system::process::kill;
use cops::system::terminal;
use cops::time::Duration;

use crate::harness::{LIMIT, Outcome, until};
use crate::{check, check_eq, must};

const SHELL: &str = "/bin/shell";

/// Runs a text; returns its output, errors included, and its status.
async fn run(text: &str) -> Result<(String, u8), String> {
    let (reader, writer) = must!(cops::io::pipe());
    let output = writer.into_descriptor();
    let errors = must!(output.duplicate());
    let command = Command::new(SHELL).argument("-c").argument(text).argument("name").argument("one").argument("two 2");
    let child = must!(command.descriptor(1, output).descriptor(2, errors).kill_on_drop(true).spawn());
    let both = join(reader.read_to_end(Vec::new()), child.wait());
    let ((read, bytes), ending) = must!(cops::timeout(LIMIT, both).await);
    check_eq!(read, Ok(bytes.len()));
    match must!(ending) {
        Ending::Exited(status) => Ok((String::from_utf8_lossy(&bytes).into_owned(), status)),
        Ending::Killed(signal) => Err(alloc::format!("{text}: the shell was ended by signal {signal}")),
    }
}

/// Checks output and status of texts.
async fn expect(cases: &[(&str, &str, u8)]) -> Outcome {
    for (text, output, status) in cases {
        let ran = run(text).await?;
        check!(ran == (String::from(*output), *status), "`{text}` gives {ran:?}");
    }
    Ok(())
}

pub async fn statuses_and_connectors() -> Outcome {
    expect(&[
        ("true", "", 0),
        ("exit 3", "", 3),
        ("false", "", 1),
        ("! false", "", 0),
        ("false && echo a || echo b; echo $?", "b\n0\n", 0),
        ("false | true", "", 0),
        ("true | false", "", 1),
        ("nothing", "nothing: not found; `help` lists the commands\n", 127),
        ("/tmp", "/tmp: permission denied\n", 126),
        ("(exit 4); echo $?", "4\n", 0),
        ("if", "-c: the text ends before a condition\n", 2),
        ("a && || b", "-c: unexpected `||`\n", 2),
        ("hello", "Hello, world!\n", 0),
    ])
    .await
}

pub async fn pipes_and_redirections() -> Outcome {
    expect(&[
        ("echo a | cat | cat", "a\n", 0),
        ("hello | grep Hello | wc -l", "1\n", 0),
        ("{ echo a; echo b; } | head -n 1", "a\n", 0),
        ("seq 100000 | head -n 2", "1\n2\n", 0),
        ("echo a > /tmp/shell-1; echo b >> /tmp/shell-1; cat < /tmp/shell-1", "a\nb\n", 0),
        ("ls /nothing 2> /tmp/shell-1; cat /tmp/shell-1", "ls: /nothing: no such file or directory\n", 0),
        ("ls /nothing 2>&1 > /dev/null | wc -l", "1\n", 0),
        ("ls /nothing > /dev/null 2>&1", "", 1),
        ("echo a >&2 2>/dev/null", "a\n", 0),
        ("cat < /nothing", "/nothing: no such file or directory\n", 1),
        ("echo a b | while read X Y; do echo $Y $X; done", "b a\n", 0),
        ("rm /tmp/shell-1", "", 0),
    ])
    .await
}

pub async fn words_are_expanded() -> Outcome {
    expect(&[
        ("X='a  b'; echo $X \"$X\" '$X' ${X}c", "a b a  b $X a bc\n", 0),
        ("echo $# $0 $2; for x in \"$@\"; do echo $x; done", "2 name two 2\none\ntwo 2\n", 0),
        ("X=1 env | grep X=; echo [$X]", "X=1\n[]\n", 0),
        ("export X=2; env | grep X=", "X=2\n", 0),
        ("X=3; (X=4; cd /bin; echo $X); echo $X; pwd", "4\n3\n/\n", 0),
        ("echo $(echo a; echo b) \"$(echo a; echo b)\"", "a b a\nb\n", 0),
        ("X=$(false); echo $?", "1\n", 0),
        ("echo ~ ~/x '~'", "/ //x ~\n", 0),
        ("mkdir /tmp/names; cd /tmp/names; touch a b c.x .d; echo * ?.x [!a] '*' n*", "a b c.x c.x b * n*\n", 0),
        (
            "cd /tmp/n*s; echo /tmp/name?/[ab]; rm -r /tmp/names; ls",
            "/tmp/names/a /tmp/names/b\nls: .: no such file or directory\n",
            1,
        ),
    ])
    .await
}

pub async fn scripts_have_conditions_and_loops() -> Outcome {
    expect(&[
        ("if [ a = b ]; then echo a; elif test 2 -gt 1; then echo b; else echo c; fi", "b\n", 0),
        (
            "for x in 1 2 3 4; do if [ $x = 2 ]; then continue; fi; if [ $x = 4 ]; then break; fi; echo $x; done",
            "1\n3\n",
            0,
        ),
        ("X=; while [ \"$X\" != aaa ]; do X=${X}a; done; echo $X", "aaa\n", 0),
        ("until true; do echo no; done; echo $?", "0\n", 0),
        ("echo 'echo $1; exit 5' > /tmp/script; shell /tmp/script x; echo $?; . /tmp/script", "x\n5\none\n", 5),
        ("rm /tmp/script; sleep 0.01 & echo a; wait; echo b", "a\nb\n", 0),
        ("cp /bin/hello /tmp/copy && mv /tmp/copy /tmp/moved && ls /tmp/moved && rm /tmp/moved", "/tmp/moved\n", 0),
    ])
    .await
}

pub async fn scripts_have_functions_and_patterns() -> Outcome {
    expect(&[
        (
            "for x in a.rs b.c d; do case $x in *.rs) echo rust;; *.c|*.h) echo c;; *) echo $x; esac; done",
            "rust\nc\nd\n",
            0,
        ),
        ("P='*.rs'; case a.rs in \"$P\") echo no;; $P) echo yes; esac; case x in y) ;; esac; echo $?", "yes\n0\n", 0),
        ("f() { echo $# $1 $0; return 3; echo no; }; f a b; echo $? $#", "2 a name\n3 2\n", 0),
        ("X=1; f() { local X=2 Y; Y=3; Z=4; echo $X$Y; }; f; echo $X$Y$Z", "23\n14\n", 0),
        ("f() { if [ $1 -gt 1 ]; then f $(($1 - 1)); fi; echo $1; }; f 3", "1\n2\n3\n", 0),
        ("f() { f; }; f; echo no", "more than 256 commands within each other\n", 1),
        ("echo() { :; }; echo a; unset echo; echo b; cd() (exit 7); cd; echo $?", "b\n7\n", 0),
        ("f() { for x in 1 2; do g; echo $x; done; }; g() { break; }; f 2>/dev/null", "1\n2\n", 0),
        ("echo ${X:-a b} \"${X-c  d}\" ${X:=e} $X ${X:+f} ${#X} \"${Y+g}\" ${9-h}", "a b c  d e e f 1  h\n", 0),
        ("X=/a/b.tar.gz; echo ${X##*/} ${X%/*} ${X#*.} ${X%%.*} ${X%'*'}", "b.tar.gz /a tar.gz /a/b /a/b.tar.gz\n", 0),
        ("echo ${X?no X}; echo no", "X: no X\n", 1),
        (
            "X=6; echo $((X * 7)) $(((1 + 2) * 3 > 8)) \"$((0x10 - $X))\"; echo $((1 / 0)); echo no",
            "42 1 10\n$((1 / 0)): a division by 0\n",
            1,
        ),
        ("X=5; cat <<E | head -n 1; echo $?\n$X $((X + 1))\n\tb\nE\n", "5 6\n0\n", 0),
        ("while read x; do echo \"<$x>\"; done <<'E'\n$HOME\nb\nE\necho end", "<$HOME>\n<b>\nend\n", 0),
        ("cat <<E >/dev/null; true <<F; cat <<G\na\nE\nb\nF\nc\nG\n", "c\n", 0),
    ])
    .await
}

/// A shell whose keys a test presses.
struct Console {
    shell: cops::process::Child,
    settings: abi_unix::types::Termios,
}

impl Console {
    fn start() -> Result<Console, String> {
        // Meanwhile this program is in the background.
        must!(cops::system::signal::ignore(abi_unix::types::signal::TTOU));
        let settings = must!(terminal::settings(0));
        // The keys' echo would be in the log.
        let echo = abi_unix::types::terminal::local::ECHO;
        let quiet = abi_unix::types::Termios { local: settings.local & !echo, ..settings };
        must!(terminal::set(0, &quiet, terminal::When::Flushed));
        let null = must!(cops::file::OpenOptions::new().write(true).open("/dev/null")).into_descriptor();
        let errors = must!(null.duplicate());
        let command = Command::new(SHELL).descriptor(1, null).descriptor(2, errors).kill_on_drop(true);
        let shell = must!(command.spawn());
        must!(terminal::set_group(shell.number(), 0));
        must!(terminal::set_foreground(0, shell.number()));
        Ok(Console { shell, settings })
    }

    /// Waits until the shell edits a line again, and has taken all keys.
    async fn is_ready(&self) -> Outcome {
        until(|| Ok(is_raw()? && terminal::readable(0)? == 0)).await
    }

    /// Types a line that writes a file, and checks that.
    async fn writes(&self, keys: &str, path: &str, expected: &str) -> Outcome {
        self.is_ready().await?;
        self.press(keys).await?;
        file_is(path, expected).await?;
        self.is_ready().await
    }

    /// Returns whether programs have the terminal.
    fn has_job(&self) -> cops::system::Result<bool> {
        Ok(terminal::foreground(0)? != self.shell.number())
    }

    /// Presses a key while programs have the terminal, until that has brought a condition about: one key can meet the
    /// end of a loop's program.
    async fn press_until(&self, key: &str, is_done: impl Fn() -> cops::system::Result<bool>) -> Outcome {
        while !must!(is_done()) {
            if must!(self.has_job()) {
                self.press(key).await?;
            }
            cops::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    async fn press(&self, keys: &str) -> Outcome {
        for key in keys.bytes() {
            must!(terminal::insert(0, key));
        }
        Ok(())
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = terminal::set(0, &self.settings, terminal::When::Flushed);
        if let Ok(own) = terminal::group(0) {
            let _ = terminal::set_foreground(0, own);
        }
    }
}

/// Returns whether the shell edits a line.
fn is_raw() -> cops::system::Result<bool> {
    Ok(terminal::settings(0)?.local & abi_unix::types::terminal::local::ICANON == 0)
}

/// Waits until a file has this text.
async fn file_is(path: &str, expected: &str) -> Outcome {
    for _ in 0..1000 {
        if cops::file::read_to_string(path).await.is_ok_and(|text| text == expected) {
            must!(cops::file::remove(path));
            return Ok(());
        }
        cops::sleep(Duration::from_millis(10)).await;
    }
    Err(alloc::format!("{path} is {:?}, not {expected:?}", cops::file::read_to_string(path).await))
}

pub async fn keys_make_lines() -> Outcome {
    let console = Console::start()?;
    let file = "/tmp/keys-1";
    // Editing, an unfinished line, completion of a command and a path, the history.
    console.writes("echo ab\x7fc > /tmp/keys-1\r", file, "ac\n").await?;
    console.writes("echo 'a\rb' > /tmp/keys-1\r", file, "a\nb\n").await?;
    console.writes("hel\tlo > /tmp/keys-1\r", file, "Hello, world!\n").await?;
    console.writes("ls /bin/shel\t> /tmp/keys-1\r", file, "/bin/shell\n").await?;
    console.writes("\x1b[A\x1b[A\r", file, "Hello, world!\n").await?;
    console.press("half a line\x03exit 9\r").await?;
    check_eq!(must!(must!(cops::timeout(LIMIT, console.shell.wait()).await)), Ending::Exited(9));
    Ok(())
}

pub async fn the_interrupt_key_ends_the_command_and_not_the_shell() -> Outcome {
    let console = Console::start()?;
    console.is_ready().await?;
    // A program, a pipeline, a tool, a loop of the shell alone, and one that reads.
    for text in ["sleep 1000", "cat /dev/zero | wc", "cat", "while true; do true; done", "read X", "X=$(sleep 1000)"] {
        console.press("echo begun > /tmp/keys-2; ").await?;
        console.press(text).await?;
        console.press("; echo not > /tmp/keys-3\r").await?;
        file_is("/tmp/keys-2", "begun\n").await?;
        // Whichever process has the foreground by now gets the signal.
        cops::sleep(Duration::from_millis(20)).await;
        console.press("\x03").await?;
        console.is_ready().await.map_err(|reason| alloc::format!("{text}: {reason}"))?;
        console.writes("echo $? > /tmp/keys-2\r", "/tmp/keys-2", "130\n").await?;
    }
    check!(cops::file::metadata("/tmp/keys-3").is_err());
    // Jobs in the background stay.
    console.press("sleep 1000 &\r").await?;
    console.is_ready().await?;
    console.writes("\x03jobs > /tmp/keys-2\r", "/tmp/keys-2", "[1] running  sleep 1000\n").await?;
    console.writes("kill %1; wait; jobs > /tmp/keys-2; echo $! >> /tmp/keys-2\r", "/tmp/keys-2", "%1\n").await?;
    // The end of the input ends the shell.
    check_eq!(kill(console.shell.number(), 0), Ok(()));
    console.press("\x04").await?;
    check_eq!(must!(must!(cops::timeout(LIMIT, console.shell.wait()).await)), Ending::Exited(0));
    Ok(())
}

pub async fn the_stop_key_stops_a_job_that_can_go_on() -> Outcome {
    let console = Console::start()?;
    let (begun, file) = ("/tmp/keys-5", "/tmp/keys-6");
    console.writes("fg; echo $? > /tmp/keys-6; bg %1; echo $? >> /tmp/keys-6\r", file, "1\n1\n").await?;
    console.writes("fg x; echo $? > /tmp/keys-6; shell -c bg; echo $? >> /tmp/keys-6\r", file, "1\n1\n").await?;
    // A program, a pipeline, a loop that starts programs, and the output of one: what changed before stays changed.
    for (place, text) in
        ["sleep 1000", "cat /dev/zero | wc", "while true; do sleep 0.01; done", "X=$(sleep 1000)"].iter().enumerate()
    {
        let number = place + 1;
        console.is_ready().await?;
        console.press(&alloc::format!("Y={number}; echo begun > {begun}; {text}; echo $? $Y > {file}\r")).await?;
        file_is(begun, "begun\n").await?;
        console.press_until("\x1a", || Ok(cops::file::metadata(file).is_ok())).await?;
        // The statements behind it run.
        file_is(file, &alloc::format!("148 {number}\n")).await.map_err(|reason| alloc::format!("{text}: {reason}"))?;
        console.writes("jobs > /tmp/keys-6\r", file, &alloc::format!("[{number}] stopped  {text}\n")).await?;
        console.writes("bg > /tmp/keys-6\r", file, &alloc::format!("[{number}] {text} &\n")).await?;
        console.writes("jobs > /tmp/keys-6\r", file, &alloc::format!("[{number}] running  {text}\n")).await?;
        console.press(&alloc::format!("fg %{number} > {begun}; echo not > {file}\r")).await?;
        file_is(begun, &alloc::format!("{text}\n")).await?;
        console.press_until("\x03", || Ok(is_raw()? && !console.has_job()?)).await?;
        console.writes("echo $? > /tmp/keys-6; jobs >> /tmp/keys-6\r", file, "130\n").await?;
    }
    // A program that reads is stopped again in the background, and reads in the foreground.
    console.is_ready().await?;
    console.press("cat > /tmp/keys-7\r").await?;
    until(|| console.has_job()).await?;
    console.press("\x1a").await?;
    console.writes("echo $? > /tmp/keys-6\r", file, "148\n").await?;
    console.press("bg\r").await?;
    for _ in 0..100 {
        console.is_ready().await?;
        console.press("jobs > /tmp/keys-6; echo >> /tmp/keys-6\r").await?;
        console.is_ready().await?;
        if cops::file::read_to_string(file).await.is_ok_and(|jobs| jobs.contains("stopped") && jobs.ends_with("\n\n")) {
            break;
        }
    }
    file_is(file, "[5] stopped  cat > /tmp/keys-7\n\n").await?;
    console.press("fg\r").await?;
    until(|| console.has_job()).await?;
    console.press("text\r\x04").await?;
    console.writes("echo $? > /tmp/keys-6\r", file, "0\n").await?;
    file_is("/tmp/keys-7", "text\n").await?;
    // Signals by the job's name stop it, let it go on, and end it with what would come after its program.
    let text = "for X in 1 2; do sleep 1000; echo not > /tmp/keys-8; done";
    console.press(&alloc::format!("{text} &\r")).await?;
    console.is_ready().await?;
    let jobs = alloc::format!("[6] running  {text}\n");
    console.writes("jobs > /tmp/keys-6\r", file, &jobs).await?;
    console.press("kill -TSTP %6; wait %6; echo $? > /tmp/keys-5\r").await?;
    file_is(begun, "148\n").await?;
    console.writes("jobs > /tmp/keys-6\r", file, &jobs.replace("running", "stopped")).await?;
    console.press("kill -CONT %6\r").await?;
    for _ in 0..100 {
        console.is_ready().await?;
        console.press("jobs > /tmp/keys-6; echo >> /tmp/keys-6\r").await?;
        console.is_ready().await?;
        if cops::file::read_to_string(file).await.is_ok_and(|jobs| jobs.contains("running") && jobs.ends_with("\n\n")) {
            break;
        }
    }
    file_is(file, &alloc::format!("{jobs}\n")).await?;
    console.writes("kill %6; wait; jobs > /tmp/keys-6; echo $! >> /tmp/keys-6\r", file, "%6\n").await?;
    check!(cops::file::metadata("/tmp/keys-8").is_err());
    // A job can wait for its own jobs; Ctrl-C takes a command's files and variables back.
    console.press("(sleep 0.01 & wait; echo done > /tmp/keys-6) &\r").await?;
    file_is(file, "done\n").await?;
    console.is_ready().await?;
    console.press("X=1; { X=2; echo begun > /tmp/keys-5; while true; do true; done; } > /tmp/keys-8\r").await?;
    file_is(begun, "begun\n").await?;
    console.press("\x03").await?;
    console.writes("echo $X > /tmp/keys-6; echo >> /tmp/keys-6\r", file, "2\n\n").await?;
    console.press("sleep 1000 & echo begun > /tmp/keys-5; X=3 wait\r").await?;
    file_is(begun, "begun\n").await?;
    cops::sleep(Duration::from_millis(20)).await;
    console.press("\x1a").await?;
    console.writes("echo $X > /tmp/keys-6\r", file, "2\n").await?;
    // A command of the shell that reads lets the keys go, too, and reads them in the foreground.
    console.press("echo begun > /tmp/keys-5; read Y\r").await?;
    file_is(begun, "begun\n").await?;
    cops::sleep(Duration::from_millis(20)).await;
    console.press("\x1a").await?;
    console.writes("echo a b c > /tmp/keys-6\r", file, "a b c\n").await?;
    console.press("fg > /tmp/keys-5\r").await?;
    file_is(begun, "read Y\n").await?;
    cops::sleep(Duration::from_millis(20)).await;
    console.press("typed\r").await?;
    console.writes("echo $? > /tmp/keys-6\r", file, "0\n").await?;
    // A loop's end by the name of the job, whether it has a program at that moment or not.
    console.press("while true; do sleep 0.01; done\r").await?;
    until(|| console.has_job()).await?;
    console.press_until("\x1a", || Ok(is_raw()? && !console.has_job()?)).await?;
    console.press("kill %9 %10 %12; wait; jobs > /tmp/keys-6; echo >> /tmp/keys-6\r").await?;
    file_is(file, "\n").await?;
    // A stopped job is in the way of the shell's end once, and ends with it.
    console.press("sleep 1001\r").await?;
    until(|| console.has_job()).await?;
    console.press("\x1a").await?;
    console.writes("jobs > /tmp/keys-6\r", file, "[13] stopped  sleep 1001\n").await?;
    console.press("exit 4\r").await?;
    console.writes("echo still > /tmp/keys-6\r", file, "still\n").await?;
    console.press("exit 4\rexit 5\r").await?;
    check_eq!(must!(must!(cops::timeout(LIMIT, console.shell.wait()).await)), Ending::Exited(5));
    Ok(())
}

pub async fn a_program_receives_signals_as_events() -> Outcome {
    let mut user = must!(cops::signal::signal(10));
    let own = cops::process::number();
    check_eq!(cops::timeout(Duration::from_millis(5), user.receive()).await.is_ok(), false);
    for _ in 0..3 {
        must!(kill(own, 10));
        must!(must!(cops::timeout(LIMIT, user.receive()).await));
    }
    check_eq!(cops::signal::signal(signal::KILL).err(), Some(cops::Errno::EINVAL));
    check_eq!(cops::signal::signal(1000).err(), Some(cops::Errno::EINVAL));
    Ok(())
}

pub async fn a_dropped_child_is_killed_on_request() -> Outcome {
    let sleeper = || Command::new(SHELL).name("sleep").argument("1000");
    let kept = must!(sleeper().spawn());
    let dropped = must!(sleeper().kill_on_drop(true).spawn());
    let (kept_number, dropped_number) = (kept.number(), dropped.number());
    drop(kept);
    drop(dropped);
    // It is gone once its status was taken.
    until(|| Ok(kill(dropped_number, 0).is_err())).await?;
    check_eq!(kill(kept_number, 0), Ok(()));
    must!(kill(kept_number, signal::KILL));
    check_eq!(must!(cops::process::wait_any().await), (kept_number, Ending::Killed(9)));
    Ok(())
}
