//! Durations as people write them in flags and manifests: `500ms`, `60s`, `15m`, `1h`.

use std::time::Duration;

/// A text that is not a valid duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid duration \"{0}\": expected a number with a unit, such as 500ms, 60s, 15m or 1h")]
pub struct InvalidDuration(String);

/// Reads one number with its unit.
///
/// ```
/// use std::time::Duration;
/// use exuvia_api::parse_duration;
///
/// assert_eq!(parse_duration("15m"), Ok(Duration::from_secs(900)));
/// assert!(parse_duration("soon").is_err());
/// ```
pub fn parse_duration(text: &str) -> Result<Duration, InvalidDuration> {
    let invalid = || InvalidDuration(text.to_owned());
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| invalid())?;
    let seconds = |per_unit: u64| number.checked_mul(per_unit).map(Duration::from_secs);
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => seconds(1),
        "m" => seconds(60),
        "h" => seconds(3600),
        _ => None,
    }
    .ok_or_else(invalid)
}

/// The shortest text that [`parse_duration`] reads as the same duration, to the millisecond.
///
/// ```
/// use std::time::Duration;
/// use exuvia_api::format_duration;
///
/// assert_eq!(format_duration(Duration::from_secs(300)), "5m");
/// assert_eq!(format_duration(Duration::from_millis(1500)), "1500ms");
/// ```
pub fn format_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    match millis {
        0 => "0s".to_owned(),
        _ if !millis.is_multiple_of(1000) => format!("{millis}ms"),
        _ if millis.is_multiple_of(3_600_000) => format!("{}h", millis / 3_600_000),
        _ if millis.is_multiple_of(60_000) => format!("{}m", millis / 60_000),
        _ => format!("{}s", millis / 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_duration_is_refused_with_the_text_in_it() {
        for text in [
            "",
            "s",
            "5",
            "-1s",
            "1d",
            "1.5s",
            "99999999999999999999s",
            "99999999999999999h",
        ] {
            let error = parse_duration(text).expect_err(text);
            assert!(error.to_string().contains(text));
        }
    }

    #[test]
    fn every_formatted_duration_reads_back() {
        for millis in [0, 1, 999, 1000, 1500, 60_000, 61_000, 3_600_000, 5_400_000] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
    }
}
