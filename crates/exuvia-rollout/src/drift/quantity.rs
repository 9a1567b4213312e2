//! Whether two texts are one quantity: `1000m` and `1`, `1024Mi` and `1Gi`.

/// Powers of ten and two by suffix, as Kubernetes has them.
fn scale(suffix: &str) -> Option<(i32, i32)> {
    let (tens, twos) = match suffix {
        "" => (0, 0),
        "n" => (-9, 0),
        "u" => (-6, 0),
        "m" => (-3, 0),
        "k" => (3, 0),
        "M" => (6, 0),
        "G" => (9, 0),
        "T" => (12, 0),
        "P" => (15, 0),
        "E" => (18, 0),
        "Ki" => (0, 10),
        "Mi" => (0, 20),
        "Gi" => (0, 30),
        "Ti" => (0, 40),
        "Pi" => (0, 50),
        "Ei" => (0, 60),
        _ => return None,
    };
    Some((tens, twos))
}

/// An exact amount in billionths, which is as fine as the server keeps it (it rounds up). `None`: not a quantity, or too large.
fn amount(text: &str) -> Option<i128> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || fraction.len() > 18 {
        return None;
    }
    let exponent = suffix.strip_prefix(['e', 'E']).filter(|rest| !rest.is_empty());
    let (tens, twos) = match exponent.and_then(|rest| rest.parse::<i32>().ok()) {
        Some(exponent) => (exponent, 0),
        None => scale(suffix)?,
    };
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let mut value = digits.checked_mul(1_i128.checked_shl(u32::try_from(twos).ok()?)?)?;
    let places = tens + 9 - i32::try_from(fraction.len()).ok()?;
    let power = 10_i128.checked_pow(places.unsigned_abs())?;
    value = if places >= 0 {
        value.checked_mul(power)?
    } else {
        value.checked_add(power - 1)? / power
    };
    Some(if negative { -value } else { value })
}

/// Whether both are quantities, and equal.
pub(super) fn same(a: &str, b: &str) -> bool {
    amount(a).is_some_and(|amount_of_a| Some(amount_of_a) == amount(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_equal_by_amount() {
        for (a, b) in [
            ("1000m", "1"),
            ("1024Mi", "1Gi"),
            ("0.5", "500m"),
            ("1e3", "1k"),
            ("1E3", "1000"),
            ("1.5Gi", "1536Mi"),
            ("2E", "2e18"),
            ("+1", "1"),
            ("-1", "-1000m"),
            ("0.0000000001", "1n"), // the server rounds up
            ("100n", "0.0000001"),
        ] {
            assert!(same(a, b), "{a} {b}");
        }
        for (a, b) in [
            ("1", "2"),
            ("1m", "1M"),
            ("1Gi", "1G"),
            ("a", "a"),
            ("", "0"),
            ("1x", "1x"),
            (".", "0"),
            ("1.2.3", "1.2"),
        ] {
            assert!(!same(a, b), "{a} {b}");
        }
    }
}
