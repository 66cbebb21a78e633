#pragma once

// The only torch include, so that one precompiled header serves every file.
#include <torch/torch.h>
