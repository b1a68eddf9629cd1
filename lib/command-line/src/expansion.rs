//! From the parts of words, with the values of their parameters, to arguments: values are split, patterns are replaced
//! by the names of files.

use alloc::string::String;
use alloc::vec::Vec;

use crate::pattern::{Pattern, Quotable, is_pattern};

/// An argument before its pattern is replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Field {
    characters: Vec<Quotable>,
}

/// The fields of words, made part by part.
#[derive(Debug, Default)]
pub struct Fields {
    finished: Vec<Field>,
    current: Option<Field>,
}

impl Fields {
    /// Adds text to the current field. Quoted text makes a field even if it is empty.
    pub fn text(&mut self, text: &str, is_quoted: bool) {
        if is_quoted || !text.is_empty() {
            let field = self.current.get_or_insert_default();
            field.characters.extend(text.chars().map(|character| (character, is_quoted)));
        }
    }

    /// Adds an unquoted value, whose blanks divide fields.
    pub fn value(&mut self, text: &str) {
        for character in text.chars() {
            if character.is_ascii_whitespace() {
                self.end_field();
            } else {
                self.current.get_or_insert_default().characters.push((character, false));
            }
        }
    }

    /// Ends the current field, if there is one.
    pub fn end_field(&mut self) {
        self.finished.extend(self.current.take());
    }

    /// Returns all fields.
    pub fn finish(mut self) -> Vec<Field> {
        self.end_field();
        self.finished
    }
}

impl Field {
    /// Returns the field as it is.
    pub fn text(&self) -> String {
        self.characters.iter().map(|(character, _)| *character).collect()
    }

    /// Returns the field as a pattern of texts.
    pub fn pattern(&self) -> Pattern {
        Pattern::new(&self.characters)
    }

    /// Replaces a pattern by the sorted paths that match it, or the field by its text if it is no pattern or none
    /// does. `list` returns the names in a directory, which is "" for the working directory; none if it cannot be read.
    pub fn paths(&self, list: &mut dyn FnMut(&str) -> Vec<String>) -> Vec<String> {
        if !is_pattern(&self.characters) {
            return alloc::vec![self.text()];
        }
        let mut found = alloc::vec![String::new()];
        let mut parts = self.characters.split(|quotable| quotable.0 == '/').peekable();
        while let Some(part) = parts.next() {
            let mut next = Vec::new();
            let is_last = parts.peek().is_none();
            let name: String = part.iter().map(|(character, _)| *character).collect();
            for path in &found {
                let end = if is_last { "" } else { "/" };
                if name.is_empty() {
                    next.push(alloc::format!("{path}{end}"));
                } else if is_pattern(part) {
                    let pattern = Pattern::new(part);
                    let mut names = list(path);
                    names.retain(|name| pattern.matches(name));
                    next.extend(names.iter().map(|name| alloc::format!("{path}{name}{end}")));
                } else if name == "." || name == ".." || list(path).contains(&name) {
                    next.push(alloc::format!("{path}{name}{end}"));
                }
            }
            found = next;
        }
        found.sort();
        if found.is_empty() { alloc::vec![self.text()] } else { found }
    }
}

/// Returns a text without the part at its beginning or its end that has a pattern: the longest or the shortest such
/// part. The text is returned as it is if no part has the pattern.
pub fn without<'a>(text: &'a str, pattern: &Pattern, is_suffix: bool, is_longest: bool) -> &'a str {
    let characters: Vec<char> = text.chars().collect();
    let length = characters.len();
    let part = |count: usize| if is_suffix { &characters[length - count..] } else { &characters[..count] };
    let mut counts = 0..=length;
    let has = |count: &usize| pattern.matches_text(part(*count));
    let Some(count) = (if is_longest { counts.rfind(has) } else { counts.find(has) }) else { return text };
    let bytes: usize = part(count).iter().map(|character| character.len_utf8()).sum();
    if is_suffix { &text[..text.len() - bytes] } else { &text[bytes..] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(fields: Fields) -> Vec<String> {
        fields.finish().iter().map(Field::text).collect()
    }

    #[test]
    fn values_are_split_and_texts_are_not() {
        let mut fields = Fields::default();
        fields.text("a ", true);
        fields.value(" b c");
        fields.text("d", false);
        fields.value("\n");
        fields.value("");
        fields.text("", true);
        fields.end_field();
        fields.text("", false);
        assert_eq!(texts(fields), ["a ", "b", "cd", ""]);
    }

    #[test]
    fn parts_with_a_pattern_are_taken_off() {
        let pattern = |text: &str| Pattern::new(&text.chars().map(|character| (character, false)).collect::<Vec<_>>());
        for (text, of, is_suffix, is_longest, expected) in [
            ("/a/b/c.rs", "*/", false, true, "c.rs"),
            ("/a/b/c.rs", "*/", false, false, "a/b/c.rs"),
            ("/a/b/c.rs", "/*", true, false, "/a/b"),
            ("/a/b/c.rs", "/*", true, true, ""),
            ("c.tar.gz", ".*", true, false, "c.tar"),
            ("c.tar.gz", ".*", true, true, "c"),
            ("äöü", "?", false, false, "öü"),
            ("äöü", "[ü]", true, true, "äö"),
            (".x", "*", false, true, ""),
            ("abc", "b", false, true, "abc"),
            ("", "*", true, true, ""),
        ] {
            assert_eq!(without(text, &pattern(of), is_suffix, is_longest), expected, "{text} {of}");
        }
    }

    fn paths(text: &str, is_quoted: bool) -> Vec<String> {
        let mut fields = Fields::default();
        fields.text(text, is_quoted);
        let mut list = |path: &str| {
            let names: &[&str] = match path {
                "" => &["b.rs", "a.rs", "src", ".git"],
                "src/" => &["lib.rs", "x"],
                "/" => &["bin", "tmp"],
                "/bin/" => &["hello", "help"],
                _ => &[],
            };
            names.iter().map(|name| (*name).into()).collect()
        };
        fields.finish().iter().flat_map(|field| field.paths(&mut list)).collect()
    }

    #[test]
    fn patterns_become_the_names_that_match() {
        assert_eq!(paths("*.rs", false), ["a.rs", "b.rs"]);
        assert_eq!(paths("*", false), ["a.rs", "b.rs", "src"]);
        assert_eq!(paths("*/l*", false), ["src/lib.rs"]);
        assert_eq!(paths("*/x", false), ["src/x"]);
        assert_eq!(paths("./s*/", false), ["./s*/"], "the directory lists nothing here");
        assert_eq!(paths("s*/", false), ["src/"]);
        assert_eq!(paths("/b*/hel?", false), ["/bin/help"]);
        assert_eq!(paths("*.c", false), ["*.c"]);
        assert_eq!(paths("*.rs", true), ["*.rs"]);
    }
}
