CREATE TABLE nothing (i int);
