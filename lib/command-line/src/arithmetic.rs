//! The value of an expression: `$((…))`.
//!
//! Values are integers of 64 bits, which wrap around, and truth is a number that is not 0, as in C.

use alloc::string::String;
use core::fmt;

/// Greatest depth of parentheses and signs.
const DEEPEST: usize = 64;

/// The reason for which an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArithmeticError {
    /// The text goes on with this, or ends, where it cannot.
    Unexpected(String),
    /// The value of a variable, or a number, that is no integer of 64 bits.
    NoNumber(String),
    /// A division by 0.
    Division,
    /// More than 64 expressions within each other.
    TooDeep,
}

impl fmt::Display for ArithmeticError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArithmeticError::Unexpected(rest) if rest.is_empty() => {
                formatter.write_str("the expression is not complete")
            }
            ArithmeticError::Unexpected(rest) => write!(formatter, "unexpected `{rest}` in an expression"),
            ArithmeticError::NoNumber(text) => write!(formatter, "`{text}` is no number"),
            ArithmeticError::Division => formatter.write_str("a division by 0"),
            ArithmeticError::TooDeep => write!(formatter, "more than {DEEPEST} expressions within each other"),
        }
    }
}

type Valued = Result<i64, ArithmeticError>;

/// Returns the value of an expression; `variable` returns the text of a variable, "" for one that is not set.
///
/// # Errors
///
/// The text is no expression, a number is none, or something is divided by 0.
pub fn evaluate(text: &str, variable: &dyn Fn(&str) -> String) -> Valued {
    let mut expression = Expression { rest: text, variable, depth: 0, is_skipped: false };
    let value = expression.choice()?;
    match expression.rest.trim_start() {
        "" => Ok(value),
        _ => Err(expression.unexpected()),
    }
}

/// Operators of two values by their rank, the weakest first. Of two of which one begins with the other, the longer is
/// first.
const OPERATORS: [&[&str]; 10] = [
    &["||"],
    &["&&"],
    &["|"],
    &["^"],
    &["&"],
    &["==", "!="],
    &["<=", ">=", "<", ">"],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "/", "%"],
];

struct Expression<'a> {
    rest: &'a str,
    variable: &'a dyn Fn(&str) -> String,
    depth: usize,
    /// Whether the value of this part does not matter, nor its errors: behind `0 &&` and its like.
    is_skipped: bool,
}

impl Expression<'_> {
    fn unexpected(&self) -> ArithmeticError {
        ArithmeticError::Unexpected(self.rest.trim().into())
    }

    fn skip(&mut self, token: &str) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Returns the operator of this rank that is next. One that is the beginning of a longer one is not.
    fn operator(&mut self, rank: usize) -> Option<&'static str> {
        let rest = self.rest.trim_start();
        let longest = OPERATORS.iter().flat_map(|operators| operators.iter());
        let longest = longest.filter(|operator| rest.starts_with(**operator)).max_by_key(|operator| operator.len())?;
        let found = OPERATORS[rank].iter().find(|operator| *operator == longest)?;
        self.skip(found);
        Some(found)
    }

    fn nested(&mut self, parse: impl FnOnce(&mut Self) -> Valued) -> Valued {
        if self.depth == DEEPEST {
            return Err(ArithmeticError::TooDeep);
        }
        self.depth += 1;
        let value = parse(self);
        self.depth -= 1;
        value
    }

    /// Parses a part whose value does not matter unless `matters`.
    fn only_if(&mut self, matters: bool, parse: impl FnOnce(&mut Self) -> Valued) -> Valued {
        let before = self.is_skipped;
        self.is_skipped |= !matters;
        let value = parse(self);
        self.is_skipped = before;
        value
    }

    fn choice(&mut self) -> Valued {
        let condition = self.operation(0)?;
        if !self.skip("?") {
            return Ok(condition);
        }
        let first = self.only_if(condition != 0, |part| part.nested(Self::choice))?;
        if !self.skip(":") {
            return Err(self.unexpected());
        }
        let second = self.only_if(condition == 0, |part| part.nested(Self::choice))?;
        Ok(if condition != 0 { first } else { second })
    }

    fn operation(&mut self, rank: usize) -> Valued {
        if rank == OPERATORS.len() {
            return self.operand();
        }
        let mut left = self.operation(rank + 1)?;
        while let Some(operator) = self.operator(rank) {
            let matters = match operator {
                "||" => left == 0,
                "&&" => left != 0,
                _ => true,
            };
            let right = self.only_if(matters, |part| part.operation(rank + 1))?;
            left = self.apply(operator, left, right)?;
        }
        Ok(left)
    }

    fn apply(&self, operator: &str, left: i64, right: i64) -> Valued {
        Ok(match operator {
            "||" => i64::from(left != 0 || right != 0),
            "&&" => i64::from(left != 0 && right != 0),
            "|" => left | right,
            "^" => left ^ right,
            "&" => left & right,
            "==" => i64::from(left == right),
            "!=" => i64::from(left != right),
            "<=" => i64::from(left <= right),
            ">=" => i64::from(left >= right),
            "<" => i64::from(left < right),
            ">" => i64::from(left > right),
            "<<" => left.wrapping_shl(right as u32),
            ">>" => left.wrapping_shr(right as u32),
            "+" => left.wrapping_add(right),
            "-" => left.wrapping_sub(right),
            "*" => left.wrapping_mul(right),
            _ if right == 0 && self.is_skipped => 0,
            _ if right == 0 => return Err(ArithmeticError::Division),
            "/" => left.wrapping_div(right),
            _ => left.wrapping_rem(right),
        })
    }

    fn operand(&mut self) -> Valued {
        if self.skip("(") {
            let value = self.nested(Self::choice)?;
            return if self.skip(")") { Ok(value) } else { Err(self.unexpected()) };
        }
        for (sign, apply) in [
            ("-", (|value: i64| value.wrapping_neg()) as fn(i64) -> i64),
            ("+", |value| value),
            ("~", |value| !value),
            ("!", |value| i64::from(value == 0)),
        ] {
            if self.skip(sign) {
                return self.nested(Self::operand).map(apply);
            }
        }
        let is_of_word = |character: char| character == '_' || character.is_ascii_alphanumeric();
        let length = self.rest.find(|character| !is_of_word(character)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(length);
        match word.chars().next() {
            None => return Err(self.unexpected()),
            Some(first) => {
                self.rest = rest;
                if first.is_ascii_digit() {
                    return number(word);
                }
            }
        }
        match (self.variable)(word).trim() {
            "" => Ok(0),
            _ if self.is_skipped => Ok(0),
            value => match value.strip_prefix('-') {
                Some(value) => number(value).map(i64::wrapping_neg),
                None => number(value),
            },
        }
    }
}

/// Reads a number: of base 10, of base 16 with 0x, of base 8 with 0.
fn number(word: &str) -> Valued {
    let (digits, radix) = match (word.strip_prefix("0x").or(word.strip_prefix("0X")), word.strip_prefix('0')) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) if !digits.is_empty() => (digits, 8),
        _ => (word, 10),
    };
    let is_number = digits.starts_with(|first: char| first.is_digit(radix));
    let parsed = is_number.then(|| i64::from_str_radix(digits, radix).ok()).flatten();
    parsed.ok_or_else(|| ArithmeticError::NoNumber(word.into()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(text: &str) -> Result<i64, String> {
        let variable = |name: &str| match name {
            "x" => " 7 ".into(),
            "n" => "-3".into(),
            "bad" => "7a".into(),
            _ => String::new(),
        };
        evaluate(text, &variable).map_err(|error| error.to_string())
    }

    #[test]
    fn expressions_have_c_s_values() {
        for (text, expected) in [
            ("1 + 2 * 3", 7),
            ("(1+2)*3", 9),
            ("7 - 2 - 1", 4),
            ("x * 2 + none", 14),
            ("n * n", 9),
            ("-x - -1", -6),
            ("7 / 2 * 2 + 7 % 2", 7),
            ("-7 / 2", -3),
            ("1 << 4 | 1", 17),
            ("1 | 2 == 2", 1),
            ("3 < 4 && 4 <= 4 && !(2 > 3)", 1),
            ("0 || 0", 0),
            ("1 ? 2 : 3 ? 4 : 5", 2),
            ("0 ? 2 : 0 ? 4 : 5", 5),
            ("0x10 + 010 + 0", 24),
            ("~0", -1),
            ("0 && 1 / 0", 0),
            ("1 || bad", 1),
            ("1 ? 2 : 1 % 0", 2),
            ("9223372036854775807 + 1", i64::MIN),
            ("1>=1", 1),
            ("6&3^1", 3),
        ] {
            assert_eq!(value(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn errors_name_their_reason() {
        for (text, expected) in [
            ("", "the expression is not complete"),
            ("1 +", "the expression is not complete"),
            ("(1", "the expression is not complete"),
            ("1 2", "unexpected `2` in an expression"),
            ("1 ? 2", "the expression is not complete"),
            ("x = 1", "unexpected `= 1` in an expression"),
            ("1 / (x - 7)", "a division by 0"),
            ("5 % 0", "a division by 0"),
            ("bad", "`7a` is no number"),
            ("09", "`09` is no number"),
            ("0x", "`0x` is no number"),
            ("12345678901234567890", "`12345678901234567890` is no number"),
            ("é", "unexpected `é` in an expression"),
        ] {
            assert_eq!(value(text), Err(expected.into()), "{text}");
        }
        assert!(value(&("(".repeat(100) + "1")).unwrap_err().contains("more than 64"));
        assert!(value(&"-".repeat(100)).unwrap_err().contains("more than 64"));
        assert!(value(&"1?1:".repeat(100)).unwrap_err().contains("more than 64"));
    }

    proptest! {
        #![proptest_config(property::cases(500))]

        #[test]
        fn any_text_has_a_value_or_an_error(text in "[0-9xn+*/%()<>=&|!~?: é-]{0,40}") {
            let _ = value(&text);
        }

        #[test]
        fn sums_and_products_are_those_of_wrapping_integers(a in any::<i64>(), b in any::<i64>(), c in 0..i64::MAX) {
            let shown = |value: i64| if value == i64::MIN { "(-9223372036854775807 - 1)".into() } else { format!("{value}") };
            let expected = a.wrapping_add(b.wrapping_mul(c));
            prop_assert_eq!(value(&format!("{} + {} * {c}", shown(a), shown(b))), Ok(expected));
        }
    }
}
