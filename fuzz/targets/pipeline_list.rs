//! Lists of kernels to precompile: loading gives a list or an error, and a list that was loaded is the same after saving.

use bevy_tensor_compute::pipelines::PipelineList;

use super::{Answer, InputFile, Target};

pub const TARGET: Target = Target {
    name: "pipeline_list",
    corpus: "pipeline_list",
    weight: 6,
    longest: 4096,
    words: &[
        "{\"version\":1,\"kernels\":[",
        "{\"kernel\":\"a\",\"variant\":\"b\",\"wgsl\":\"\",\"entry\":\"main\",\"checked\":true,\"params_in_storage\":false,\"writes\":[true],\"faults\":false}",
        "\"writes\":[",
        "true",
        "false",
        "null",
        "\"version\":",
        "\"wgsl\":",
        "[[[[[[[[",
        "\\u0000",
        "\\ud800",
    ],
    guards: false,
    make: || {
        let (file, copy) = (InputFile::new("json"), InputFile::new("json"));
        Box::new(move |bytes| {
            file.write(bytes);
            let list = match PipelineList::load(file.path()) {
                Ok(list) => list,
                Err(error) => return Answer::refused(error),
            };
            list.save(copy.path()).expect("a folder for temporary files");
            assert_eq!(PipelineList::load(copy.path()).expect("it was just saved"), list);
            Answer::accepted(list.len().min(9))
        })
    },
};
