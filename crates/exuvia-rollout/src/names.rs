//! What annotations, environment variables and files are called: one value, so that a program can speak another's dialect.

use std::borrow::Cow;

/// The annotation with `metadata.generation` of the owner: for people, and all that the compat gate has.
pub const GENERATION_ANNOTATION: &str = "mcp.exuvia.dev/generation";
/// The environment variable with that generation. It beats the file, see [`Generation`](crate::Generation).
pub const GENERATION_ENV: &str = "MCP_GENERATION";
/// The annotation with the [`Token`](crate::Token).
pub const FENCE_ANNOTATION: &str = "exuvia.dev/fence";
/// The environment variable with the [`Token`](crate::Token).
pub const FENCE_ENV: &str = "MCP_FENCE";
/// The annotation with the hash of the run config.
pub const CONFIG_HASH_ANNOTATION: &str = "exuvia.dev/config-hash";
/// The environment variable with the hash of the run config that the pod was made for.
pub const CONFIG_HASH_ENV: &str = "MCP_CONFIG_HASH";
/// The annotation with the hash of the [`Intent`](crate::Intent) that was applied.
pub const INTENT_HASH_ANNOTATION: &str = "exuvia.dev/intent-hash";
/// The annotation with the hash of rendered pod template and run config, by which the operator issues epochs.
pub const TEMPLATE_HASH_ANNOTATION: &str = "exuvia.dev/template-hash";
/// The annotation by which people ask for a restart (RFC 3339).
pub const RESTARTED_AT_ANNOTATION: &str = "mcp.exuvia.dev/restarted-at";
/// The annotation by which the operator notes the last restart that it carried out.
pub const RESTART_MARK_ANNOTATION: &str = "mcp.exuvia.dev/last-processed-restart";
/// The annotation that chooses how to restart: `rolling` or `immediate`.
pub const RESTART_STRATEGY_ANNOTATION: &str = "mcp.exuvia.dev/restart-strategy";
/// Where the run config is looked for; the first that exists is read.
pub const CONFIG_PATHS: [&str; 3] = [
    "/etc/runconfig/runconfig.json",
    "/etc/exuvia/runconfig.json",
    "./runconfig.json",
];
/// The field of the run config with the generation.
pub const GENERATION_FIELD: &str = "generation";
/// The field manager of what the helper pod applies.
pub const FIELD_MANAGER: &str = "mcp-runner";

/// The names that ToolHive uses. It has no token, no intent hash and no template hash.
pub mod toolhive {
    /// See [`GENERATION_ANNOTATION`](super::GENERATION_ANNOTATION).
    pub const GENERATION_ANNOTATION: &str = "toolhive.stacklok.dev/mcpserver-generation";
    /// See [`GENERATION_ENV`](super::GENERATION_ENV).
    pub const GENERATION_ENV: &str = "THV_MCPSERVER_GENERATION";
    /// See [`CONFIG_HASH_ANNOTATION`](super::CONFIG_HASH_ANNOTATION).
    pub const CONFIG_HASH_ANNOTATION: &str = "toolhive.stacklok.dev/runconfig-checksum";
    /// See [`RESTARTED_AT_ANNOTATION`](super::RESTARTED_AT_ANNOTATION).
    pub const RESTARTED_AT_ANNOTATION: &str = "mcpserver.toolhive.stacklok.dev/restarted-at";
    /// See [`RESTART_MARK_ANNOTATION`](super::RESTART_MARK_ANNOTATION).
    pub const RESTART_MARK_ANNOTATION: &str = "mcpserver.toolhive.stacklok.dev/last-processed-restart";
    /// See [`RESTART_STRATEGY_ANNOTATION`](super::RESTART_STRATEGY_ANNOTATION).
    pub const RESTART_STRATEGY_ANNOTATION: &str = "mcpserver.toolhive.stacklok.dev/restart-strategy";
    /// See [`CONFIG_PATHS`](super::CONFIG_PATHS).
    pub const CONFIG_PATHS: [&str; 3] = [
        "/etc/runconfig/runconfig.json",
        "/etc/toolhive/runconfig.json",
        "./runconfig.json",
    ];
    /// See [`GENERATION_FIELD`](super::GENERATION_FIELD).
    pub const GENERATION_FIELD: &str = "mcpserver_generation";
    /// See [`FIELD_MANAGER`](super::FIELD_MANAGER).
    pub const FIELD_MANAGER: &str = "toolhive-container-manager";
}

/// Where the stamps of a target are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StampOn {
    /// In `metadata.annotations` of the object itself: a new stamp does not roll its pods.
    Object,
    /// In `spec.template.metadata.annotations`: a new stamp rolls the pods.
    PodTemplate,
}

/// All names in one value. The fields are those of the constants in this module, which document them.
///
/// ```
/// use exuvia_rollout::{Names, StampOn};
///
/// assert_eq!(Names::default().generation_env, "MCP_GENERATION");
/// assert_eq!(Names::toolhive().generation_env, "THV_MCPSERVER_GENERATION");
/// assert_eq!(Names::toolhive().stamp_on, StampOn::PodTemplate);
/// let mine = Names { field_manager: "till-runner".into(), ..Names::default() };
/// # drop(mine);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// [`GENERATION_ANNOTATION`]
    pub generation_annotation: Cow<'static, str>,
    /// [`GENERATION_ENV`]
    pub generation_env: Cow<'static, str>,
    /// [`FENCE_ANNOTATION`]; the strict gate needs it.
    pub fence_annotation: Option<Cow<'static, str>>,
    /// [`FENCE_ENV`]
    pub fence_env: Option<Cow<'static, str>>,
    /// [`CONFIG_HASH_ANNOTATION`]
    pub config_hash_annotation: Cow<'static, str>,
    /// [`CONFIG_HASH_ENV`]
    pub config_hash_env: Option<Cow<'static, str>>,
    /// [`INTENT_HASH_ANNOTATION`]
    pub intent_hash_annotation: Option<Cow<'static, str>>,
    /// [`TEMPLATE_HASH_ANNOTATION`]
    pub template_hash_annotation: Option<Cow<'static, str>>,
    /// [`RESTARTED_AT_ANNOTATION`]
    pub restarted_at_annotation: Cow<'static, str>,
    /// [`RESTART_MARK_ANNOTATION`]
    pub restart_mark_annotation: Cow<'static, str>,
    /// [`RESTART_STRATEGY_ANNOTATION`]
    pub restart_strategy_annotation: Cow<'static, str>,
    /// [`CONFIG_PATHS`]
    pub config_paths: Vec<Cow<'static, str>>,
    /// [`GENERATION_FIELD`]
    pub generation_field: Cow<'static, str>,
    /// [`FIELD_MANAGER`]
    pub field_manager: Cow<'static, str>,
    /// Where the stamps of a target are.
    pub stamp_on: StampOn,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            generation_annotation: GENERATION_ANNOTATION.into(),
            generation_env: GENERATION_ENV.into(),
            fence_annotation: Some(FENCE_ANNOTATION.into()),
            fence_env: Some(FENCE_ENV.into()),
            config_hash_annotation: CONFIG_HASH_ANNOTATION.into(),
            config_hash_env: Some(CONFIG_HASH_ENV.into()),
            intent_hash_annotation: Some(INTENT_HASH_ANNOTATION.into()),
            template_hash_annotation: Some(TEMPLATE_HASH_ANNOTATION.into()),
            restarted_at_annotation: RESTARTED_AT_ANNOTATION.into(),
            restart_mark_annotation: RESTART_MARK_ANNOTATION.into(),
            restart_strategy_annotation: RESTART_STRATEGY_ANNOTATION.into(),
            config_paths: CONFIG_PATHS.map(Into::into).into(),
            generation_field: GENERATION_FIELD.into(),
            field_manager: FIELD_MANAGER.into(),
            stamp_on: StampOn::Object,
        }
    }
}

impl Names {
    /// The names of ToolHive, for targets that its runners share with ours. The compat gate only.
    pub fn toolhive() -> Self {
        Self {
            generation_annotation: toolhive::GENERATION_ANNOTATION.into(),
            generation_env: toolhive::GENERATION_ENV.into(),
            fence_annotation: None,
            fence_env: None,
            config_hash_annotation: toolhive::CONFIG_HASH_ANNOTATION.into(),
            config_hash_env: None,
            intent_hash_annotation: None,
            template_hash_annotation: None,
            restarted_at_annotation: toolhive::RESTARTED_AT_ANNOTATION.into(),
            restart_mark_annotation: toolhive::RESTART_MARK_ANNOTATION.into(),
            restart_strategy_annotation: toolhive::RESTART_STRATEGY_ANNOTATION.into(),
            config_paths: toolhive::CONFIG_PATHS.map(Into::into).into(),
            generation_field: toolhive::GENERATION_FIELD.into(),
            field_manager: toolhive::FIELD_MANAGER.into(),
            stamp_on: StampOn::PodTemplate,
        }
    }

    /// The value of `--names`: `default` or `toolhive`.
    pub fn named(dialect: &str) -> Option<Self> {
        match dialect {
            "default" => Some(Self::default()),
            "toolhive" => Some(Self::toolhive()),
            _ => None,
        }
    }
}
