//! Numbers in a form for people, and tables of them.

/// Formats a count with a comma for each thousand.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a rate or another figure: three significant digits, thousands in full.
pub fn figure(value: f64) -> String {
    let magnitude = value.abs();
    if !value.is_finite() {
        "-".into()
    } else if magnitude >= 1000.0 {
        let sign = if value < 0.0 { "-" } else { "" };
        format!("{sign}{}", count(magnitude.round() as u64))
    } else if magnitude >= 100.0 || value == value.trunc() {
        format!("{value:.0}")
    } else if magnitude >= 10.0 {
        format!("{value:.1}")
    } else if magnitude >= 0.1 {
        format!("{value:.2}")
    } else {
        format!("{value:.*}", (1.0 - magnitude.log10().floor()).clamp(2.0, 9.0) as usize)
    }
}

/// Formats a figure where there is little room: millions and more with a letter.
pub fn short(value: f64) -> String {
    match value.abs() {
        magnitude if magnitude >= 1e9 => format!("{} G", figure(value / 1e9)),
        magnitude if magnitude >= 1e6 => format!("{} M", figure(value / 1e6)),
        _ => figure(value),
    }
}

/// Formats a time in microseconds.
pub fn duration_us(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.0} µs"),
        us if us < 1e6 => format!("{} ms", figure(us / 1e3)),
        us => format!("{} s", figure(us / 1e6)),
    }
}

/// Formats rows of equal length under headings, in columns: the first to the left, the others to the right.
pub fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([headings[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let cells = cells.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string() + "\n"
    };
    let mut text = line(headings.to_vec());
    text +=
        &line(widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>().iter().map(String::as_str).collect());
    for row in rows {
        text += &line(row.iter().map(String::as_str).collect());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas_and_three_digits() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0.0, 1.0, 1.234, 12.34, 123.4, 1234.5, -2000.4].map(figure),
            ["0", "1", "1.23", "12.3", "123", "1,235", "-2,000"]
        );
        assert_eq!(
            [0.5, 0.0421, 0.004_217, -0.01, 1e-30].map(figure),
            ["0.50", "0.042", "0.0042", "-0.010", "0.000000000"]
        );
        assert_eq!([f64::NAN, f64::INFINITY].map(figure), ["-", "-"]);
        assert_eq!([12.0, 1234.0, 98_765.0, 2_500_000.0].map(duration_us), ["12 µs", "1.23 ms", "98.8 ms", "2.50 s"]);
    }

    #[test]
    fn large_numbers_have_a_short_form() {
        assert_eq!([1e5, 2.5e6, 1e9, -1e10].map(short), ["100,000", "2.50 M", "1 G", "-10 G"]);
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["1".to_string(), "10 µs".into()], vec!["256".into(), "1.5 ms".into()]];
        let expected = "connections    mean\n-----------  ------\n1             10 µs\n256          1.5 ms\n";
        assert_eq!(table(&["connections", "mean"], &rows), expected);
    }
}
