//! The first line of a script: `#!`, the path of its interpreter, and at most one argument.

/// Length of the start of a file in which the line is looked for (Linux's, since 5.1).
pub const LINE_LENGTH: usize = 256;

/// Greatest number of scripts of which each is the interpreter of the one before; one more is `ELOOP`.
pub const LONGEST_CHAIN: usize = 5;

/// A script's request for its interpreter (execve(2), "Interpreter scripts").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "shebang")]
#[doc(alias = "binfmt_script")]
pub struct Script<'head> {
    /// Path of the interpreter, never empty.
    pub interpreter: &'head [u8],
    /// The rest of the line without the blanks around it: one argument, whatever blanks it has.
    pub argument: Option<&'head [u8]>,
}

/// Whether a file that begins with these bytes is a script.
pub fn is_script(head: &[u8]) -> bool {
    head.starts_with(b"#!")
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

fn trim(mut text: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = text
        && is_blank(*first)
    {
        text = rest;
    }
    while let [rest @ .., last] = text
        && is_blank(*last)
    {
        text = rest;
    }
    text
}

impl Script<'_> {
    /// Reads the line at the start of a script. `None` if it names no interpreter, or if the interpreter's path may go
    /// on behind the bytes that are looked at: `ENOEXEC`.
    ///
    /// `head` is the start of the file: all of it, or at least [`LINE_LENGTH`] bytes.
    pub fn parse(head: &[u8]) -> Option<Script<'_>> {
        let head = &head[..head.len().min(LINE_LENGTH)];
        let line = head.strip_prefix(b"#!")?;
        let (line, is_whole) = match line.iter().position(|&byte| byte == b'\n' || byte == 0) {
            Some(end) => (&line[..end], true),
            None => (line, head.len() < LINE_LENGTH),
        };
        let path_and_rest = trim(line);
        let end = path_and_rest.iter().position(|&byte| is_blank(byte));
        let is_path_whole = is_whole || end.is_some() || line.last().is_some_and(|&byte| is_blank(byte));
        let (interpreter, rest) = path_and_rest.split_at(end.unwrap_or(path_and_rest.len()));
        if interpreter.is_empty() || !is_path_whole {
            return None;
        }
        let argument = trim(rest);
        Some(Script { interpreter, argument: (!argument.is_empty()).then_some(argument) })
    }
}
