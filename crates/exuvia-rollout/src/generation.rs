//! Which generation a helper pod is of: its environment beats the file, even when it is lower.

/// The generation in force, and where it is from.
///
/// The environment of a container is fixed when its pod is made, while a mounted file follows the object. So a restarted old
/// pod tells its own generation from the environment, and only from there.
///
/// | environment | generation | note |
/// |---|---|---|
/// | unset or empty | the file's | |
/// | a number, `0` as well | the environment's, even when it is lower | both are logged at debug level |
/// | unparsable or negative | the file's | a warning |
///
/// ```
/// use exuvia_rollout::{Generation, Note};
///
/// let ours = Generation::choose(Some("3"), Some(5));
/// assert_eq!((ours.value, ours.note), (3, Note::Overridden));
/// assert_eq!(Generation::choose(Some(""), Some(5)).value, 5);
/// assert_eq!(Generation::choose(Some("-1"), Some(5)).note, Note::Ignored);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Generation {
    /// The generation in force; 0 if neither has one.
    pub value: i64,
    /// What the environment says, if it is usable.
    pub env: Option<i64>,
    /// What the file says.
    pub file: Option<i64>,
    /// What to log about it.
    pub note: Note,
}

/// What is worth a line in the log about a [`Generation`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Note {
    /// Nothing: the file decides.
    #[default]
    FromFile,
    /// Debug: the environment decides.
    Overridden,
    /// Warning: the environment has a value that is not a generation, and the file decides.
    Ignored,
}

impl Generation {
    /// Chooses. `env` is the variable's value as it is, `file` the number in the run config.
    pub fn choose(env: Option<&str>, file: Option<i64>) -> Self {
        let of_file = |note| Self {
            value: file.unwrap_or(0),
            env: None,
            file,
            note,
        };
        let Some(text) = env.filter(|text| !text.is_empty()) else {
            return of_file(Note::FromFile);
        };
        match text.parse::<i64>() {
            Ok(value) if value >= 0 => Self {
                value,
                env: Some(value),
                file,
                note: Note::Overridden,
            },
            _ => of_file(Note::Ignored),
        }
    }

    /// Writes the line that the note asks for. `variable` is the environment variable's name.
    pub fn log(&self, variable: &str) {
        let (value, file) = (self.value, self.file);
        match self.note {
            Note::FromFile => {}
            Note::Overridden => {
                tracing::debug!(variable, env = self.env, file, "generation from the environment");
            }
            Note::Ignored => tracing::warn!(
                variable,
                generation = value,
                file,
                "not a valid generation in the environment: expected a number from 0; the file's is used"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_beats_the_file_even_when_it_is_lower() {
        for (env, file, value, note) in [
            (None, Some(5), 5, Note::FromFile),
            (Some(""), Some(5), 5, Note::FromFile),
            (None, None, 0, Note::FromFile),
            (Some("3"), Some(5), 3, Note::Overridden),
            (Some("7"), Some(5), 7, Note::Overridden),
            (Some("5"), Some(5), 5, Note::Overridden),
            (Some("3"), None, 3, Note::Overridden),
            (Some("0"), Some(5), 0, Note::Overridden),
            (Some("-1"), Some(5), 5, Note::Ignored),
            (Some("three"), Some(5), 5, Note::Ignored),
            (Some(" 3"), Some(5), 5, Note::Ignored),
            (Some("99999999999999999999"), Some(5), 5, Note::Ignored),
            (Some("x"), None, 0, Note::Ignored),
        ] {
            let chosen = Generation::choose(env, file);
            assert_eq!(
                (chosen.value, chosen.note, chosen.file),
                (value, note, file),
                "{env:?} {file:?}"
            );
        }
    }
}
