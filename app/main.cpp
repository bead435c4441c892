// The program lehr: every command, for the families of lehr/model/.
#include "lehr/app/main.h"

#include "lehr/app/models.h"

int main(int argc, char** argv) {
  return lehr::app::main(argc, argv, lehr::app::models());
}
