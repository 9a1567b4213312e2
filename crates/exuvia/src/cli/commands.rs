//! Commands that are printed to be copied: they name the cluster that was looked at, as the user named it.

use exuvia_storage::droppable::Verdict;
use exuvia_write::Redacted;

use super::args::ClusterArgs;

/// How a command of ours begins.
const OURS: &str = "exuvia ";

impl ClusterArgs {
    /// The text with `--kubeconfig` and `--context`, where they were given, in each of our commands: the text itself if it
    /// is one, and those in backticks.
    pub(super) fn in_commands(&self, text: &str) -> String {
        let flags = self.flags();
        if flags.is_empty() {
            return text.to_owned();
        }
        if text.starts_with(OURS) {
            return format!("{text}{flags}");
        }
        let quoted = text.split('`').enumerate().map(|(index, part)| {
            // Every second part is between backticks.
            if index % 2 == 1 && part.starts_with(OURS) {
                format!("{part}{flags}")
            } else {
                part.to_owned()
            }
        });
        quoted.collect::<Vec<_>>().join("`")
    }

    /// The same for all that a verdict advises.
    pub(super) fn in_verdict(&self, verdict: &mut Verdict) {
        for holder in &mut verdict.holders {
            holder.message = Redacted::ours(self.in_commands(&holder.message));
        }
        for unknown in &mut verdict.unknown {
            unknown.command = self.in_commands(&unknown.command);
        }
    }

    fn flags(&self) -> String {
        let kubeconfig = self.kubeconfig.as_ref().map(|path| path.display().to_string());
        [("kubeconfig", &kubeconfig), ("context", &self.context)]
            .into_iter()
            .filter_map(|(name, value)| Some(format!(" --{name} {}", shell_word(value.as_ref()?))))
            .collect()
    }
}

/// One word for a shell.
fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@=+,%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Format;

    fn given(kubeconfig: Option<&str>, context: Option<&str>) -> ClusterArgs {
        ClusterArgs {
            kubeconfig: kubeconfig.map(Into::into),
            context: context.map(Into::into),
            output: Format::default(),
            show_values: false,
        }
    }

    #[test]
    fn each_command_names_the_cluster_and_other_text_stays() {
        let east = given(Some("/my files/config"), Some("east"));
        assert_eq!(
            east.in_commands("run `exuvia storage migrate a.b`, not `kubectl get x`; exuvia waits"),
            "run `exuvia storage migrate a.b --kubeconfig '/my files/config' --context east`, not `kubectl get x`; exuvia waits"
        );
        assert_eq!(
            given(None, Some("it's")).in_commands("exuvia storage droppable a.b v1 --prove"),
            r"exuvia storage droppable a.b v1 --prove --context 'it'\''s'"
        );
        let text = "run `exuvia plan`";
        assert_eq!(given(None, None).in_commands(text), text);
    }
}
