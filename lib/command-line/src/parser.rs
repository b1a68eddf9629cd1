//! From text to tree: recursive descent over characters, with a bound on the depth.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::syntax::{
    Command, CommandKind, Connector, Parameter, Part, Pipeline, Redirection, Script, Statement, Target, Word,
};

/// Greatest depth of commands within commands. Running them nests as deeply as parsing them does.
pub const DEEPEST: usize = 32;

/// Words that begin, divide or end a command, where a command can begin.
const RESERVED: [&str; 13] = ["if", "then", "elif", "else", "fi", "while", "until", "for", "do", "done", "{", "}", "!"];

/// Words of shells' languages that this one lacks.
const FOREIGN: [&str; 4] = ["case", "esac", "function", "select"];

/// The reason for which a text is no script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyntaxError {
    /// The text ends before this: more lines could complete it.
    Unfinished(&'static str),
    /// A token where none of its kind can be.
    Unexpected(Box<str>),
    /// Something that other shells know.
    Unknown(Box<str>, &'static str),
    /// More than [`DEEPEST`] commands within each other.
    TooDeep,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SyntaxError::Unfinished(missing) => write!(formatter, "the text ends before {missing}"),
            SyntaxError::Unexpected(token) => write!(formatter, "unexpected {token}"),
            SyntaxError::Unknown(token, hint) => write!(formatter, "`{token}` is not known here{hint}"),
            SyntaxError::TooDeep => write!(formatter, "more than {DEEPEST} commands within each other"),
        }
    }
}

type Parsed<T> = Result<T, SyntaxError>;

/// Parses a script.
///
/// # Errors
///
/// The text is not a script, or not a complete one.
pub fn parse(text: &str) -> Parsed<Script> {
    let mut parser = Parser { text, position: 0, depth: 0 };
    let script = parser.script(&[])?;
    match parser.token() {
        None => Ok(script),
        Some(token) => Err(SyntaxError::Unexpected(token)),
    }
}

/// Returns whether a text can be a variable's name.
pub fn is_name(text: &str) -> bool {
    text.starts_with(begins_name) && text.chars().all(continues_name)
}

fn begins_name(character: char) -> bool {
    character == '_' || character.is_ascii_alphabetic()
}

fn continues_name(character: char) -> bool {
    begins_name(character) || character.is_ascii_digit()
}

/// Returns whether a character ends an unquoted word.
fn ends_word(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\r' | '\n' | ';' | '&' | '|' | '<' | '>' | '(' | ')')
}

struct Parser<'a> {
    text: &'a str,
    /// Offset of the next character.
    position: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.position..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn take(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.position += character.len_utf8();
        Some(character)
    }

    fn skip(&mut self, token: &str) -> bool {
        let is_next = self.rest().starts_with(token);
        if is_next {
            self.position += token.len();
        }
        is_next
    }

    fn take_while(&mut self, is_meant: fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let length = rest.find(|character| !is_meant(character)).unwrap_or(rest.len());
        self.position += length;
        &rest[..length]
    }

    /// Skips blanks, continued lines, and a comment.
    fn skip_blanks(&mut self) {
        loop {
            self.take_while(|character| matches!(character, ' ' | '\t' | '\r'));
            if !self.skip("\\\n") {
                break;
            }
        }
        // A comment begins where a word could.
        if self.peek() == Some('#') {
            self.take_while(|character| character != '\n');
        }
    }

    fn skip_lines(&mut self) {
        loop {
            self.skip_blanks();
            if !self.skip("\n") {
                return;
            }
        }
    }

    /// Returns the next token in quotes, for messages; `None` at the end of the text.
    fn token(&mut self) -> Option<Box<str>> {
        self.skip_blanks();
        let rest = self.rest();
        let mut characters = rest.chars();
        let first = characters.next()?;
        if first == '\n' {
            return Some("end of the line".into());
        }
        let length = match first {
            '(' | ')' => 1,
            first if ends_word(first) => {
                first.len_utf8() + if characters.next() == Some(first) { first.len_utf8() } else { 0 }
            }
            _ => rest.find(ends_word).unwrap_or(rest.len()),
        };
        Some(alloc::format!("`{}`", &rest[..length]).into())
    }

    fn unexpected(&mut self, missing: &'static str) -> SyntaxError {
        self.token().map_or(SyntaxError::Unfinished(missing), SyntaxError::Unexpected)
    }

    /// Returns the reserved word that begins here.
    fn reserved(&mut self) -> Option<&'static str> {
        self.skip_blanks();
        let rest = self.rest();
        let word = &rest[..rest.find(ends_word).unwrap_or(rest.len())];
        RESERVED.into_iter().find(|reserved| *reserved == word)
    }

    fn skip_reserved(&mut self, word: &'static str) -> bool {
        self.reserved() == Some(word) && self.skip(word)
    }

    fn expect_reserved(&mut self, word: &'static str) -> Parsed<()> {
        if self.skip_reserved(word) { Ok(()) } else { Err(self.unexpected(word)) }
    }

    /// Parses statements up to a reserved word of `ends`, a parenthesis or the end of the text.
    fn script(&mut self, ends: &[&str]) -> Parsed<Script> {
        if self.depth == DEEPEST {
            return Err(SyntaxError::TooDeep);
        }
        self.depth += 1;
        let mut statements = Vec::new();
        loop {
            self.skip_lines();
            let is_at_end = matches!(self.peek(), None | Some(')'));
            if is_at_end || self.reserved().is_some_and(|word| ends.contains(&word)) {
                break;
            }
            let mut statement = self.statement()?;
            self.skip_blanks();
            match self.peek() {
                Some('\n' | ';') => _ = self.take(),
                Some('&') => {
                    self.take();
                    statement.is_in_background = true;
                }
                None | Some(')') => {}
                Some(_) if self.reserved().is_some_and(|word| ends.contains(&word)) => {}
                Some(_) => return Err(self.unexpected("the end of the command")),
            }
            statements.push(statement);
        }
        self.depth -= 1;
        Ok(Script { statements })
    }

    /// Parses the statements of a body, of which there is at least one.
    fn body(&mut self, ends: &[&str], missing: &'static str) -> Parsed<Script> {
        let script = self.script(ends)?;
        if script.statements.is_empty() { Err(self.unexpected(missing)) } else { Ok(script) }
    }

    fn statement(&mut self) -> Parsed<Statement> {
        let start = self.position;
        let first = self.pipeline()?;
        let mut rest = Vec::new();
        let mut end = self.position;
        loop {
            self.skip_blanks();
            let connector = if self.skip("&&") {
                Connector::And
            } else if self.skip("||") {
                Connector::Or
            } else {
                break;
            };
            self.skip_lines();
            rest.push((connector, self.pipeline()?));
            end = self.position;
        }
        Ok(Statement { first, rest, is_in_background: false, text: self.text[start..end].trim().into() })
    }

    fn pipeline(&mut self) -> Parsed<Pipeline> {
        let is_negated = self.skip_reserved("!");
        let mut commands = Vec::new();
        loop {
            commands.push(self.command()?);
            self.skip_blanks();
            if self.rest().starts_with("||") || !self.skip("|") {
                return Ok(Pipeline { is_negated, commands });
            }
            if self.peek() == Some('&') {
                return Err(SyntaxError::Unknown("|&".into(), "; write `2>&1 |`"));
            }
            self.skip_lines();
        }
    }

    fn command(&mut self) -> Parsed<Command> {
        self.skip_blanks();
        let kind = match self.reserved() {
            Some("if") => self.conditional()?,
            Some(word @ ("while" | "until")) => {
                self.skip(word);
                let condition = self.body(&["do"], "a condition")?;
                CommandKind::While { condition, body: self.loop_body()?, is_until: word == "until" }
            }
            Some("for") => self.repetition()?,
            Some("{") => {
                self.skip("{");
                let script = self.body(&["}"], "`}`")?;
                self.expect_reserved("}")?;
                CommandKind::Group(script)
            }
            Some(_) => return Err(self.unexpected("a command")),
            None if self.skip("(") => {
                if self.peek() == Some('(') {
                    return Err(SyntaxError::Unknown("((".into(), ""));
                }
                let script = self.body(&[], "`)`")?;
                self.close_parenthesis()?;
                CommandKind::Subshell(script)
            }
            None => return self.simple_command(),
        };
        let mut redirections = Vec::new();
        while let Some(redirection) = self.redirection()? {
            redirections.push(redirection);
        }
        Ok(Command { kind, redirections })
    }

    fn close_parenthesis(&mut self) -> Parsed<()> {
        self.skip_lines();
        if self.skip(")") { Ok(()) } else { Err(self.unexpected("`)`")) }
    }

    fn conditional(&mut self) -> Parsed<CommandKind> {
        self.skip("if");
        let mut branches = Vec::new();
        loop {
            let condition = self.body(&["then"], "a condition")?;
            self.expect_reserved("then")?;
            branches.push((condition, self.body(&["elif", "else", "fi"], "`fi`")?));
            if self.skip_reserved("elif") {
                continue;
            }
            let otherwise = if self.skip_reserved("else") { Some(self.body(&["fi"], "`fi`")?) } else { None };
            self.expect_reserved("fi")?;
            return Ok(CommandKind::If { branches, otherwise });
        }
    }

    fn repetition(&mut self) -> Parsed<CommandKind> {
        self.skip("for");
        self.skip_blanks();
        let start = self.position;
        let variable = self.take_while(continues_name);
        if !is_name(variable) {
            self.position = start;
            return Err(self.unexpected("a variable"));
        }
        self.skip_lines();
        let mut words = None;
        let is_end = |rest: &str| rest.chars().next().is_none_or(ends_word);
        if self.rest().strip_prefix("in").is_some_and(is_end) {
            self.skip("in");
            let list: &mut Vec<Word> = words.insert(Vec::new());
            while let Some(word) = self.word()? {
                list.push(word);
            }
        }
        self.skip_blanks();
        let _ = self.skip(";");
        self.skip_lines();
        Ok(CommandKind::For { variable: variable.into(), words, body: self.loop_body()? })
    }

    fn loop_body(&mut self) -> Parsed<Script> {
        self.expect_reserved("do")?;
        let body = self.body(&["done"], "`done`")?;
        self.expect_reserved("done")?;
        Ok(body)
    }

    fn simple_command(&mut self) -> Parsed<Command> {
        let (mut assignments, mut words, mut redirections) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            if let Some(redirection) = self.redirection()? {
                redirections.push(redirection);
                continue;
            }
            if words.is_empty()
                && let Some(name) = self.assignment()
            {
                assignments.push((name, self.word_parts()?));
                continue;
            }
            let start = self.position;
            let Some(word) = self.word()? else { break };
            let text = self.text[start..self.position].trim();
            if words.is_empty() && FOREIGN.contains(&text) {
                return Err(SyntaxError::Unknown(text.into(), ""));
            }
            words.push(word);
        }
        if assignments.is_empty() && words.is_empty() && redirections.is_empty() {
            return Err(self.unexpected("a command"));
        }
        self.skip_blanks();
        if self.peek() == Some('(') {
            return Err(SyntaxError::Unexpected("`(`".into()));
        }
        Ok(Command { kind: CommandKind::Simple { assignments, words }, redirections })
    }

    /// Skips `NAME=`, and returns the name.
    fn assignment(&mut self) -> Option<String> {
        self.skip_blanks();
        let start = self.position;
        let name = self.take_while(continues_name);
        if is_name(name) && self.skip("=") {
            return Some(name.into());
        }
        self.position = start;
        None
    }

    fn redirection(&mut self) -> Parsed<Option<Redirection>> {
        self.skip_blanks();
        let start = self.position;
        let digits = self.take_while(|character| character.is_ascii_digit());
        if !self.rest().starts_with(['<', '>']) {
            self.position = start;
            return Ok(None);
        }
        let is_output = self.take() == Some('>');
        let descriptor = descriptor(digits, usize::from(is_output))?;
        let target = if self.skip("&") {
            let number = self.take_while(|character| character.is_ascii_alphanumeric() || character == '-');
            if number.is_empty() {
                return Err(self.unexpected("a descriptor"));
            }
            Target::Duplicate(crate::parser::descriptor(number, 0)?)
        } else if is_output && self.skip(">") {
            Target::Append(self.file()?)
        } else if !is_output && self.skip("<") {
            return Err(SyntaxError::Unknown("<<".into(), ""));
        } else if self.rest().starts_with(['>', '|']) && is_output || self.rest().starts_with('>') {
            return Err(self.unexpected("a file"));
        } else if is_output {
            Target::Write(self.file()?)
        } else {
            Target::Read(self.file()?)
        };
        Ok(Some(Redirection { descriptor, target }))
    }

    fn file(&mut self) -> Parsed<Word> {
        match self.word()? {
            Some(word) => Ok(word),
            None => Err(self.unexpected("a file")),
        }
    }

    /// Parses a word; `None` where none begins.
    fn word(&mut self) -> Parsed<Option<Word>> {
        self.skip_blanks();
        if self.peek().is_none_or(ends_word) {
            return Ok(None);
        }
        self.word_parts().map(Some)
    }

    fn word_parts(&mut self) -> Parsed<Word> {
        let mut word = Word::default();
        if self
            .rest()
            .strip_prefix('~')
            .is_some_and(|rest| rest.chars().next().is_none_or(|c| c == '/' || ends_word(c)))
        {
            self.take();
            word.parts.push(Part::Home);
        }
        while let Some(character) = self.peek().filter(|character| !ends_word(*character)) {
            match character {
                '\'' => {
                    self.take();
                    let (text, _) = self.rest().split_once('\'').ok_or(SyntaxError::Unfinished("the second `'`"))?;
                    self.position += text.len() + 1;
                    word.push_text(text, true);
                }
                '"' => self.double_quotes(&mut word)?,
                '\\' => {
                    self.take();
                    match self.take() {
                        None => return Err(SyntaxError::Unfinished("the character behind `\\`")),
                        Some('\n') => {}
                        Some(character) => word.push_text(character.encode_utf8(&mut [0; 4]), true),
                    }
                }
                '$' => {
                    let part = self.dollar(false)?;
                    word.parts.push(part);
                }
                '`' => return Err(SyntaxError::Unknown("`".into(), "; write `$(…)`")),
                character => {
                    self.take();
                    word.push_text(character.encode_utf8(&mut [0; 4]), false);
                }
            }
        }
        Ok(word)
    }

    fn double_quotes(&mut self, word: &mut Word) -> Parsed<()> {
        self.take();
        if self.skip("\"") {
            word.push_text("", true);
            return Ok(());
        }
        loop {
            match self.peek() {
                None => return Err(SyntaxError::Unfinished("the second `\"`")),
                Some('"') => {
                    self.take();
                    return Ok(());
                }
                Some('$') => {
                    let part = self.dollar(true)?;
                    word.parts.push(part);
                }
                Some('`') => return Err(SyntaxError::Unknown("`".into(), "; write `$(…)`")),
                Some('\\') => {
                    self.take();
                    match self.peek() {
                        Some('\n') => {
                            self.take();
                        }
                        Some(character @ ('"' | '$' | '`' | '\\')) => {
                            self.take();
                            word.push_text(character.encode_utf8(&mut [0; 4]), true);
                        }
                        _ => word.push_text("\\", true),
                    }
                }
                Some(character) => {
                    self.take();
                    word.push_text(character.encode_utf8(&mut [0; 4]), true);
                }
            }
        }
    }

    /// Parses what `$` begins; a `$` that begins nothing is a text.
    fn dollar(&mut self, is_quoted: bool) -> Parsed<Part> {
        self.take();
        if self.skip("(") {
            if self.peek() == Some('(') {
                return Err(SyntaxError::Unknown("$((".into(), ""));
            }
            let script = self.script(&[])?;
            self.close_parenthesis()?;
            return Ok(Part::Output { script, is_quoted });
        }
        let parameter = if self.skip("{") {
            let parameter = self.parameter(true);
            match (parameter, self.peek()) {
                (Some(parameter), Some('}')) => {
                    self.take();
                    parameter
                }
                (_, None) => return Err(SyntaxError::Unfinished("`}`")),
                _ => {
                    let rest = self.rest();
                    let end = rest.find(|c| c == '}' || ends_word(c)).unwrap_or(rest.len());
                    return Err(SyntaxError::Unknown(
                        alloc::format!("${{…{}", &rest[..end]).into(),
                        "; only `${NAME}` is",
                    ));
                }
            }
        } else {
            match self.parameter(false) {
                Some(parameter) => parameter,
                None => return Ok(Part::Text { text: "$".into(), is_quoted }),
            }
        };
        Ok(Part::Parameter { parameter, is_quoted })
    }

    /// Parses a parameter's name; a position has several digits in braces only.
    fn parameter(&mut self, is_in_braces: bool) -> Option<Parameter> {
        let parameter = match self.peek()? {
            '#' => Parameter::Count,
            '@' => Parameter::Each,
            '*' => Parameter::Together,
            '?' => Parameter::Status,
            '$' => Parameter::Process,
            '!' => Parameter::Job,
            '0'..='9' => {
                let digits = self.take_while(|character| character.is_ascii_digit());
                let used = if is_in_braces { digits } else { &digits[..1] };
                self.position -= digits.len() - used.len();
                return Some(Parameter::Position(used.parse().unwrap_or(usize::MAX)));
            }
            first if begins_name(first) => return Some(Parameter::Variable(self.take_while(continues_name).into())),
            _ => return None,
        };
        self.take();
        Some(parameter)
    }
}

/// Parses the number of a descriptor that a command begins with.
fn descriptor(digits: &str, default: usize) -> Parsed<usize> {
    match digits {
        "" => Ok(default),
        "0" => Ok(0),
        "1" => Ok(1),
        "2" => Ok(2),
        other => Err(SyntaxError::Unknown(other.into(), " as a descriptor; there are 0, 1 and 2")),
    }
}

impl Word {
    /// Adds text to the last part if it is text of the same kind.
    fn push_text(&mut self, more: &str, quoted: bool) {
        match self.parts.last_mut() {
            Some(Part::Text { text, is_quoted }) if *is_quoted == quoted => text.push_str(more),
            _ => self.parts.push(Part::Text { text: more.into(), is_quoted: quoted }),
        }
    }
}

#[cfg(test)]
mod tests;
