#include "lehr/base/torch.h"
