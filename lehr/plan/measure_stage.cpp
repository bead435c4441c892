#include "lehr/plan/measure_stage.h"
