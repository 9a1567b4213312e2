//! A page of the documentation as steps: the commands in its console blocks, and what they print according to the page.

use std::ops::Range;

use crate::unlike::same;

/// The last line of an output that the page cuts here: what comes after it is not compared.
const CUT: &str = "…";

/// A page, line by line.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    lines: Vec<String>,
}

/// A command of the page.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    /// As a shell takes it; lines that end with a backslash are joined.
    pub(crate) command: String,
    /// Where the page has its output.
    output: Range<usize>,
}

impl Step {
    /// `echo $?`, by which a page says how the command before it ended.
    pub(crate) fn asks_for_exit_code(&self) -> bool {
        self.command == "echo $?"
    }
}

impl Page {
    pub(crate) fn from_text(text: &str) -> Self {
        Self {
            lines: text.lines().map(str::to_owned).collect(),
        }
    }

    pub(crate) fn text(&self) -> String {
        self.lines.join("\n") + "\n"
    }

    /// The commands of all console blocks, in order.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        let (mut is_console, mut goes_on) = (false, false);
        for (number, line) in self.lines.iter().enumerate() {
            if line.starts_with("```") {
                is_console = line == "```console";
                continue;
            }
            if !is_console {
                continue;
            }
            let text = line.trim_end_matches('\\');
            if let Some(command) = text.strip_prefix("$ ") {
                steps.push(Step {
                    command: command.trim().to_owned(),
                    output: number + 1..number + 1,
                });
            } else {
                let step = steps.last_mut().expect("a console block begins with a command");
                if goes_on {
                    step.command += " ";
                    step.command += text.trim();
                    step.output = number + 1..number + 1;
                    goes_on = line.ends_with('\\');
                    continue;
                }
                step.output.end = number + 1;
            }
            goes_on = line.starts_with("$ ") && line.ends_with('\\');
        }
        steps
    }

    /// What a command prints according to the page.
    pub(crate) fn output(&self, step: &Step) -> String {
        self.lines[step.output.clone()].join("\n")
    }

    /// What the page should say instead, if what was printed differs from it in more than what differs between runs.
    pub(crate) fn correction(&self, step: &Step, printed: &str) -> Option<String> {
        let said = self.output(step);
        let printed = cut_like(&said, printed);
        (!same(&said, &printed)).then_some(printed)
    }

    /// The page with other outputs.
    pub(crate) fn corrected(&self, corrections: &[(Step, String)]) -> Self {
        let mut lines = self.lines.clone();
        for (step, output) in corrections.iter().rev() {
            lines.splice(step.output.clone(), output.lines().map(str::to_owned));
        }
        Self { lines }
    }
}

/// As many lines of what was printed as the page shows, where it cuts.
fn cut_like(said: &str, printed: &str) -> String {
    let printed = printed.trim_end();
    let shown = said.lines().count().saturating_sub(1);
    if said.lines().last() != Some(CUT) || printed.lines().count() <= shown {
        return printed.to_owned();
    }
    let mut lines: Vec<&str> = printed.lines().take(shown).collect();
    lines.push(CUT);
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# A page\n\n```console\n$ one \\\n    --flag\na\nb\n$ two\n$ echo $?\n3\n```\n\nText.\n\n```yaml\n$ no: command\n```\n\n```console\n$ three\nx\n…\n```\n";

    #[test]
    fn the_commands_of_console_blocks_are_taken_with_their_outputs() {
        let page = Page::from_text(TEXT);
        let steps: Vec<_> = page
            .steps()
            .into_iter()
            .map(|step| (page.output(&step), step.command))
            .collect();
        let pair = |output: &str, command: &str| (output.to_owned(), command.to_owned());
        assert_eq!(
            steps,
            [
                pair("a\nb", "one --flag"),
                pair("", "two"),
                pair("3", "echo $?"),
                pair("x\n…", "three")
            ]
        );
    }

    #[test]
    fn outputs_are_corrected_in_place_and_nothing_else_changes() {
        let page = Page::from_text(TEXT);
        let steps = page.steps();
        assert_eq!(page.corrected(&[]).text(), TEXT);
        let corrections = [
            (steps[0].clone(), "c".to_owned()),
            (steps[1].clone(), "d\ne".to_owned()),
        ];
        let corrected = page.corrected(&corrections).text();
        assert_eq!(corrected, TEXT.replace("a\nb\n$ two", "c\n$ two\nd\ne"));
    }

    #[test]
    fn what_the_page_cuts_is_not_compared() {
        let page = Page::from_text(TEXT);
        let cut = &page.steps()[3];
        assert_eq!(page.correction(cut, "x\ny\nz\n"), None);
        assert_eq!(page.correction(cut, "w\ny\nz\n").unwrap(), "w\n…");
        assert_eq!(page.correction(cut, "x\n").unwrap(), "x");
    }

    #[test]
    fn another_output_is_noticed() {
        let page = Page::from_text(TEXT);
        assert_eq!(page.correction(&page.steps()[0], "a\nc\n").unwrap(), "a\nc");
        assert_eq!(page.correction(&page.steps()[0], "a\nb\n"), None);
    }
}
