//! Looks at an expression's text before the parser does: one that is nested too deeply would cost it its stack.

/// How deep brackets may be nested.
pub(super) const MAX_NESTING: usize = 64;
/// How many operators, selections and calls may follow each other on one path. More than the tree may be deep, since this is an
/// estimate: the tree itself is measured after it was parsed.
const MAX_CHAIN: usize = 192;

/// Where the text stops being parsable, and why.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooDeep {
    pub(super) offset: usize,
    pub(super) problem: String,
}

/// What is open: one level of brackets.
#[derive(Clone, Copy, Default)]
struct Level {
    conditionals: usize,
    operators: usize,
    /// Selections, calls and signs since the last operator.
    suffixes: usize,
}

impl Level {
    fn depth(self) -> usize {
        1 + self.conditionals + self.operators + self.suffixes
    }
}

/// Refuses what would be nested too deeply for the parser. Anything else, even nonsense, is left to it.
pub(super) fn scan(source: &str) -> Result<(), TooDeep> {
    let bytes = source.as_bytes();
    let mut levels = vec![Level::default()];
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let mut width = 1;
        let open = levels.len();
        let level = &mut levels[open - 1];
        match rest {
            [b'/', b'/', ..] => width = rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len()),
            [b'"' | b'\'', ..] => width = text_len(rest, is_raw(bytes, at)),
            [b'&', b'&', ..] | [b'|', b'|', ..] => {
                // A chain of these becomes a balanced tree.
                (level.operators, level.suffixes) = (0, 0);
                width = 2;
            }
            [b'=' | b'!' | b'<' | b'>', b'=', ..] => {
                level.operators += 1;
                level.suffixes = 0;
                width = 2;
            }
            [b'.' | b'[', b'?', ..] => {
                level.suffixes += 1;
                if rest[0] == b'[' {
                    levels.push(Level::default());
                }
                width = 2;
            }
            [b'(' | b'[' | b'{', ..] => {
                level.suffixes += 1;
                levels.push(Level::default());
            }
            [b')' | b']' | b'}', ..] if open > 1 => {
                levels.pop();
            }
            [b'+' | b'*' | b'/' | b'%' | b'<' | b'>', ..] => {
                level.operators += 1;
                level.suffixes = 0;
            }
            // It may be a sign.
            [b'-', ..] => level.operators += 1,
            [b'.' | b'!', ..] => level.suffixes += 1,
            [b'?', ..] => {
                level.conditionals += 1;
                (level.operators, level.suffixes) = (0, 0);
            }
            [b':', ..] => (level.operators, level.suffixes) = (0, 0),
            [b',', ..] => *level = Level::default(),
            [b'i', b'n', after, ..] if !is_word(*after) && (at == 0 || !is_word(bytes[at - 1])) => {
                level.operators += 1;
                level.suffixes = 0;
                width = 2;
            }
            _ => {}
        }
        if levels.len() > MAX_NESTING + 1 {
            return Err(TooDeep {
                offset: at,
                problem: format!("the brackets are nested more than {MAX_NESTING} deep"),
            });
        }
        if levels.iter().map(|level| level.depth()).sum::<usize>() > MAX_CHAIN {
            return Err(TooDeep {
                offset: at,
                problem: "the expression is too deep: split it, or use cel.bind".to_owned(),
            });
        }
        at += width;
    }
    Ok(())
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Whether the text that begins here has a prefix by which backslashes mean nothing.
fn is_raw(bytes: &[u8], quote: usize) -> bool {
    let letters = bytes[..quote].iter().rev().take_while(|b| is_word(**b)).count();
    letters <= 2
        && bytes[quote - letters..quote]
            .iter()
            .any(|b| matches!(b, b'r' | b'R'))
}

/// How long the text is that begins here, with its quotes. One that does not end goes to the end, as the parser will say.
fn text_len(bytes: &[u8], raw: bool) -> usize {
    let quote = bytes[0];
    let triple = bytes.len() >= 3 && bytes[1] == quote && bytes[2] == quote;
    let width = if triple { 3 } else { 1 };
    let mut at = width;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if !raw => at += 1,
            b'\n' if !triple => return at,
            byte if byte == quote => {
                let closing = bytes[at..].iter().take(width).filter(|b| **b == quote).count();
                if closing == width {
                    return at + width;
                }
            }
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_let_through() {
        let ors = vec!["object.spec.mode == 'a'"; 300].join(" || ");
        for source in [
            "object.spec.rules.map(r, {'a': r.?x.orValue([1, 2]), 'b': -r.y})",
            "cel.bind(a, object.spec, a.x + (a.y ? '((((((' : \"]]]]\"))",
            "'it\\'s ((((' + r'\\' + '''a 'quoted' (((('''",
            "// ((((((((((\n1",
            ") ] }",
            ors.as_str(),
        ] {
            assert_eq!(scan(source), Ok(()), "{source}");
        }
    }

    #[test]
    fn deep_nesting_is_refused_where_it_becomes_too_deep() {
        let parentheses = "(".repeat(5_000) + "1" + &")".repeat(5_000);
        assert_eq!(scan(&parentheses).map_err(|deep| deep.offset), Err(MAX_NESTING));
        for unit in [
            "1 + ",
            "x.",
            "!",
            "-",
            "true ? 1 : ",
            "f(",
            "[",
            "{'a': ",
            "1 in ",
            "a[0]",
        ] {
            assert!(scan(&unit.repeat(3_000)).is_err(), "{unit}");
        }
    }

    #[test]
    fn brackets_in_texts_do_not_count() {
        let many = "(".repeat(100);
        for text in [
            format!("'{many}'"),
            format!("\"{many}\""),
            format!("'''{many}'''"),
            format!("r'\\' + '{many}'"),
            format!("b'{many}'"),
        ] {
            assert_eq!(scan(&text), Ok(()), "{text}");
        }
    }
}
