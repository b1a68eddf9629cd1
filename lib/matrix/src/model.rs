//! The names of the server's models.

/// A model of the server: coroutines (c) or threads (t), in the kernel (k) and in the program (u).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// Coroutines in both.
    Kcuc,
    /// Kernel coroutines, user threads.
    Kcut,
    /// Threads in both; a call that must wait is tried again.
    Ktut,
    /// Threads in both; a call that must wait sleeps.
    KtutWait,
    /// One polling kernel thread, user coroutines.
    Ktuc,
    /// A kernel thread for the worker, user coroutines around epoll.
    KtucEpoll,
}

impl Model {
    /// All models.
    pub const ALL: [Model; 6] = [Model::Kcuc, Model::Kcut, Model::Ktut, Model::KtutWait, Model::Ktuc, Model::KtucEpoll];

    /// Returns the model of a name.
    pub fn from_name(name: &[u8]) -> Option<Model> {
        Model::ALL.into_iter().find(|model| model.name().as_bytes() == name)
    }

    /// Returns the name by which a command line chooses the model.
    pub const fn name(self) -> &'static str {
        match self {
            Model::Kcuc => "kcuc",
            Model::Kcut => "kcut",
            Model::Ktut => "ktut",
            Model::KtutWait => "ktut-wait",
            Model::Ktuc => "ktuc",
            Model::KtucEpoll => "ktuc-epoll",
        }
    }

    /// Describes the model in a line.
    pub const fn description(self) -> &'static str {
        match self {
            Model::Kcuc => "Coroutines in both",
            Model::Kcut => "Kernel coroutines, user threads",
            Model::Ktut => "Threads in both; a call that must wait is tried again",
            Model::KtutWait => "Threads in both; a call that must wait sleeps",
            Model::Ktuc => "One polling kernel thread, user coroutines",
            Model::KtucEpoll => "A kernel thread for the worker, user coroutines around epoll",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_model_has_a_name_of_its_own() {
        for model in Model::ALL {
            assert_eq!(Model::from_name(model.name().as_bytes()), Some(model));
        }
        assert_eq!(Model::from_name(b"kcu"), None);
    }
}
