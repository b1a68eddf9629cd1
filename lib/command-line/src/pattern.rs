//! Patterns of names: `*`, `?` and `[…]`.

use alloc::vec::Vec;

/// A pattern of one name, without a slash.
#[derive(Clone, Debug)]
pub struct Pattern {
    elements: Vec<Element>,
}

#[derive(Clone, Debug)]
enum Element {
    Exactly(char),
    /// `?`
    One,
    /// `*`
    Several,
    /// `[…]`: ranges of characters, or all others.
    Set {
        ranges: Vec<(char, char)>,
        is_negated: bool,
    },
}

/// A character, and whether it is quoted: then it has no meaning beyond itself.
pub type Quotable = (char, bool);

/// Returns whether a text has characters of a pattern.
pub fn is_pattern(text: &[Quotable]) -> bool {
    text.iter().any(|quotable| matches!(quotable, ('*' | '?' | '[', false)))
}

impl Pattern {
    /// Reads a pattern. A `[` without its `]` stands for itself.
    pub fn new(text: &[Quotable]) -> Pattern {
        let mut elements = Vec::new();
        let mut rest = text;
        while let [first, behind @ ..] = rest {
            rest = behind;
            elements.push(match *first {
                ('?', false) => Element::One,
                // Two in succession match nothing more than one does.
                ('*', false) if matches!(elements.last(), Some(Element::Several)) => continue,
                ('*', false) => Element::Several,
                ('[', false) => match set(behind) {
                    Some((set, length)) => {
                        rest = &behind[length..];
                        set
                    }
                    None => Element::Exactly('['),
                },
                (character, _) => Element::Exactly(character),
            });
        }
        Pattern { elements }
    }

    /// Returns whether a name has the pattern. A dot at its beginning is matched by a dot alone.
    pub fn matches(&self, name: &str) -> bool {
        if name.starts_with('.') && !matches!(self.elements.first(), Some(Element::Exactly('.'))) {
            return false;
        }
        self.matches_text(&name.chars().collect::<Vec<_>>())
    }

    /// Returns whether a text has the pattern, which is no name.
    pub fn matches_text(&self, name: &[char]) -> bool {
        let (mut element, mut place) = (0, 0);
        // The last `*`, and the end of its match. An earlier one need not match more: the last can instead.
        let mut last = None;
        loop {
            match (self.elements.get(element), name.get(place)) {
                (None, None) => return true,
                (Some(Element::Several), _) => {
                    element += 1;
                    last = Some((element, place));
                    continue;
                }
                (Some(expected), Some(character)) if expected.is(*character) => {
                    element += 1;
                    place += 1;
                    continue;
                }
                _ => {}
            }
            match last {
                Some((after, end)) if end < name.len() => {
                    last = Some((after, end + 1));
                    (element, place) = (after, end + 1);
                }
                _ => return false,
            }
        }
    }
}

impl Element {
    fn is(&self, character: char) -> bool {
        match self {
            Element::Exactly(expected) => *expected == character,
            Element::One | Element::Several => true,
            Element::Set { ranges, is_negated } => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&character)) != *is_negated
            }
        }
    }
}

/// Reads a set behind its `[`, and its length with the `]`.
fn set(text: &[Quotable]) -> Option<(Element, usize)> {
    let is_negated = matches!(text.first(), Some(('!' | '^', false)));
    let start = usize::from(is_negated);
    let mut ranges = Vec::new();
    let mut place = start;
    loop {
        let (character, is_quoted) = *text.get(place)?;
        // A `]` at the beginning is an element.
        if character == ']' && !is_quoted && place > start {
            return Some((Element::Set { ranges, is_negated }, place + 1));
        }
        match (text.get(place + 1), text.get(place + 2)) {
            (Some(('-', false)), Some((last, is_quoted))) if *last != ']' || *is_quoted => {
                ranges.push((character, *last));
                place += 3;
            }
            _ => {
                ranges.push((character, character));
                place += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quotable(text: &str) -> Vec<Quotable> {
        text.chars().map(|character| (character, false)).collect()
    }

    fn matches(pattern: &str, name: &str) -> bool {
        Pattern::new(&quotable(pattern)).matches(name)
    }

    /// The definition: the first element matches, and the rest matches the rest.
    fn matches_by_definition(elements: &[Element], name: &[char]) -> bool {
        match (elements, name) {
            ([], []) => true,
            ([Element::Several, rest @ ..], _) => {
                (0..=name.len()).any(|length| matches_by_definition(rest, &name[length..]))
            }
            ([element, rest @ ..], [character, behind @ ..]) => {
                element.is(*character) && matches_by_definition(rest, behind)
            }
            _ => false,
        }
    }

    #[test]
    fn patterns_match_names() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*.rs", "main.rs", true),
            ("*.rs", "main.c", false),
            ("m?in*", "main.rs", true),
            ("a*b*c", "aXbYbZc", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[]]", "]", true),
            ("[a-]", "-", true),
            ("[", "[", true),
            ("[ab", "[ab", true),
            ("*", ".hidden", false),
            ("?hidden", ".hidden", false),
            ("[.]hidden", ".hidden", false),
            (".*", ".hidden", true),
            ("ä?", "äö", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} and {name}");
        }
    }

    #[test]
    fn quoted_characters_stand_for_themselves() {
        assert!(!is_pattern(&[('*', true), ('a', false)]));
        let pattern = Pattern::new(&[('*', true), ('*', false)]);
        assert!(pattern.matches("*x") && !pattern.matches("x"));
        let pattern = Pattern::new(&[('[', false), (']', true), (']', false)]);
        assert!(pattern.matches("]"));
    }

    proptest::proptest! {
        #![proptest_config(property::cases(512))]

        #[test]
        fn a_match_is_that_of_the_definition(pattern in "[ab*?]{0,8}", name in "[ab]{0,8}") {
            let pattern = Pattern::new(&quotable(&pattern));
            let characters: Vec<char> = name.chars().collect();
            proptest::prop_assert_eq!(
                pattern.matches(&name),
                matches_by_definition(&pattern.elements, &characters)
            );
        }

        #[test]
        fn no_text_makes_a_pattern_panic(pattern in "[\\[\\]!^a-c*?-]{0,12}", name in ".{0,8}") {
            let _ = matches(&pattern, &name);
        }
    }
}
